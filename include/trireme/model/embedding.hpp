// The first unit: token embedding, split over tensor ranks by vocabulary rows, learned positions,
// dropout.
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
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const override;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, const UnitMemory& memory) const override;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const override;

 private:
  ops::Dropout dropout(const UnitContext& context) const;
  ops::RowTile tile(const UnitContext& context, int local) const;
  /// All rows of the gradient behind the dropout mask.
  Tensor delta(const UnitContext& context, const Tensor& dy, const UnitMemory& memory) const;
  std::int64_t vocabulary_, width_;
  float rate_;
  int token_ = -1, position_ = -1;
  PartialSum partial_{true};
  Slot delta_;  // [R, C], only with dropout or sequence parallelism
};

}  // namespace trireme::model
