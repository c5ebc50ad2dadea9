// The feed-forward half of a block: up, GELU, down; or gate|up, SwiGLU, down.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Mlp {
 public:
  Mlp(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  /// partial [R, C]: this rank's summand of the output, from all rows of x [R, C].
  void forward(const UnitContext& context, const Tensor& partial, const Tensor& x,
               const UnitMemory& memory, std::span<const Tensor> levels) const;
  /// Makes the hidden values again.
  void recompute(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const;
  /// partial [R, C]: this rank's summand of the gradient for x, from all rows of dy [R, C].
  void backward_input(const UnitContext& context, const Tensor& partial, const Tensor& dy,
                      const UnitMemory& memory, std::span<const Tensor> levels) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const;

 private:
  bool gated_;
  ColumnParallel up_;
  RowParallel down_;
  std::vector<Slot> up_value_, active_;  // per tile [R, Fv or 2Fv], [R, Fv]
  std::vector<Slot> dup_, dactive_;
};

}  // namespace trireme::model
