// The first unit: token embedding, learned positions, dropout.
#pragma once

#include "trireme/model/config.hpp"
#include "trireme/model/unit.hpp"
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
  std::int64_t width_;
  float rate_;
  int token_ = -1, position_ = -1;
  Slot delta_;  // dy behind the dropout mask
};

}  // namespace trireme::model
