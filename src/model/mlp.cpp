#include "trireme/model/block.hpp"

namespace trireme::model {

Mlp::Mlp(params::ParameterTable& table, int unit, const std::string& name,
         const ModelConfig& config)
    : gated_(config.gated()) {
  using Parts = std::vector<params::Part>;
  const std::int64_t hidden = config.hidden;
  in_ = ColumnParallel(
      table, unit, name + (gated_ ? ".gate_up" : ".up"), config.width, gated_ ? 2 * hidden : hidden,
      {.bias = config.bias,
       .deviation = config.init_deviation,
       .parts = gated_ ? Parts{{.name = "gate", .extent = hidden}, {.name = "up", .extent = hidden}}
                       : Parts{}});
  out_ = RowParallel(table, unit, name + ".down", hidden, config.width,
                     {.bias = config.bias, .deviation = config.residual_deviation(), .parts = {}});
}

void Mlp::plan(UnitPlan& plan) {
  const std::vector<std::int64_t> up = in_.widths(plan.shares().tiles);
  std::vector<std::int64_t> hidden = up;
  if (gated_) {
    for (std::int64_t& width : hidden) width /= 2;
  }
  first_ = plan.keep_tiles(RecomputeCost::high, plan.rows(), up);
  const bool again = gated_ || plan.shares().exact_gelu;
  plan.overlay(
      [&] {
        middle_ =
            plan.keep_tiles(again ? RecomputeCost::low : RecomputeCost::high, plan.rows(), hidden);
      },
      [&] { dfirst_ = plan.add_tiles(plan.between(), plan.rows(), up); });
}

void Mlp::activate(const UnitContext& context) const {
  const std::vector<Tensor> up = context.full(first_), active = context.full(middle_);
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (active[i].elements() == 0) continue;
    if (gated_) {
      context.ops.swiglu(active[i], up[i]);
    } else {
      context.ops.gelu(active[i], up[i]);
    }
  }
}

void Mlp::forward(const UnitContext& context, const Tensor& x) const {
  const std::vector<Tensor> up = context.full(first_);
  if (!gated_) return in_.forward(context, context.full(middle_), x, up);
  in_.forward(context, up, x);
  activate(context);
}

void Mlp::recompute(const UnitContext& context, const Tensor& x) const {
  if (recomputes_from_input()) forward(context, x);
}

void Mlp::backward_output_weight(const UnitContext& context, const Tensor& dy) const {
  out_.backward_weight(context, dy, context.full(middle_));
}

void Mlp::backward_inner(const UnitContext& context, const Tensor& dy) const {
  const std::vector<Tensor> up = context.full(first_), dup = context.full(dfirst_);
  if (!gated_) return out_.backward_input(context, dup, dy, up);
  const std::vector<Tensor> dactive = context.full(dmiddle_);
  out_.backward_input(context, dactive, dy);
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (dup[i].elements() > 0) context.ops.swiglu_backward(dup[i], dactive[i], up[i]);
  }
}

}  // namespace trireme::model
