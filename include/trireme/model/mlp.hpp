// The MLP of a block: up, GELU, down; or gate|up, SwiGLU, down.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Mlp {
 public:
  Mlp(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  /// Adds scratch of backward that is free once the gradient for x is computed.
  void plan_inner(UnitPlan& plan);
  /// The hidden activations, from all rows of x [R, C].
  void forward(const UnitContext& context, const Tensor& x) const;
  /// The layer's output: this rank's summand [R, C], after forward or recompute.
  void project(const UnitContext& context, const Summand& partial) const;
  /// Recomputes what the plan rebuilds; x as in forward.
  void recompute(const UnitContext& context, const Tensor& x) const;
  /// Whether recompute reads x.
  bool recomputes_from_input() const { return up_value_.front().area == Area::rebuilt; }
  /// Backward in four parts, from all rows of dy [R, C]. Where backward is one call this one comes
  /// first: its scratch overlaps the second one's result.
  void backward_output_weight(const UnitContext& context, const Tensor& dy) const;
  /// The gradient for the up projection's output.
  void backward_inner(const UnitContext& context, const Tensor& dy) const;
  void backward_input_weight(const UnitContext& context, const Tensor& x) const;
  /// This rank's summand [R, C] of the gradient for x.
  void backward_input(const UnitContext& context, const Summand& partial) const;

 private:
  void activate(const UnitContext& context) const;

  bool gated_;
  ColumnParallel up_;
  RowParallel down_;
  std::vector<Slot> up_value_, active_;  // per tile [R, Fv or 2Fv], [R, Fv]
  std::vector<Slot> dup_, dactive_;
};

}  // namespace trireme::model
