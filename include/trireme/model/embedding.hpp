// The first unit: token embedding, whose vocabulary tensor ranks split; learned positions; dropout.
#pragma once

#include "trireme/model/config.hpp"
#include "trireme/model/tensor_parallel.hpp"
#include "trireme/params/table.hpp"

namespace trireme::model {

class Embedding final : public Unit {
 public:
  Embedding(params::ParameterTable& table, int unit, const ModelConfig& config);
  int token_row() const { return token_; }
  std::string name() const override { return "embedding"; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const override;
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const override;

 private:
  ops::RowTile tile(const UnitContext& context, int local) const;
  Tensor local_positions(const UnitContext& context) const;  // i32 [r]

  std::int64_t vocabulary_, width_;
  int token_ = -1, position_ = -1;
  PartialSum partial_{true};
  RegionDropout dropout_;
};

}  // namespace trireme::model
