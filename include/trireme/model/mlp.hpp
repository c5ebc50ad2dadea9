// The feed-forward half of a block: up, GELU, down; or gate|up, SwiGLU, down.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Mlp {
 public:
  Mlp(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  /// Adds what backward needs before it has the gradient for x and no longer then.
  void plan_inside(UnitPlan& plan);
  /// partial [R, C]: this rank's summand of the output, from all rows of x [R, C].
  void forward(const UnitContext& context, const Tensor& partial, const Tensor& x,
               const UnitMemory& memory, std::span<const Tensor> levels) const;
  /// Makes again what the plan rebuilds; x as in forward.
  void recompute(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const;
  /// Whether recompute reads x.
  bool recomputes_from_input() const { return area(up_value_) == Area::rebuilt; }
  /// Backward's four parts, this one and the second in any order, but one's scratch may be the
  /// other's result where backward is whole: then this comes first. dy [R, C], all rows.
  void backward_output_weight(const UnitContext& context, const Tensor& dy,
                              const UnitMemory& memory) const;
  /// The gradient for what x was multiplied to.
  void backward_inside(const UnitContext& context, const Tensor& dy,
                       const UnitMemory& memory) const;
  void backward_input_weight(const UnitContext& context, const Tensor& x,
                             const UnitMemory& memory) const;
  /// partial [R, C]: this rank's summand of the gradient for x.
  void backward_input(const UnitContext& context, const Tensor& partial, const UnitMemory& memory,
                      std::span<const Tensor> levels) const;

 private:
  static Area area(const std::vector<Slot>& slots) { return slots.front().area; }
  void make_hidden(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const;
  void activate(const UnitContext& context, const UnitMemory& memory, std::int64_t rows) const;

  bool gated_;
  ColumnParallel up_;
  RowParallel down_;
  std::vector<Slot> up_value_, active_;  // per tile [R, Fv or 2Fv], [R, Fv]
  std::vector<Slot> dup_, dactive_;
};

}  // namespace trireme::model
