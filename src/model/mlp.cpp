#include "trireme/model/block.hpp"

namespace trireme::model {

Mlp::Mlp(params::ParameterTable& table, int unit, const std::string& name,
         const ModelConfig& config)
    : gated_(config.gated()) {
  using Parts = std::vector<params::Part>;
  const std::int64_t hidden = config.hidden;
  up_ = ColumnParallel(
      table, unit, name + (gated_ ? ".gate_up" : ".up"), config.width, gated_ ? 2 * hidden : hidden,
      {.bias = config.bias,
       .deviation = config.init_deviation,
       .parts = gated_ ? Parts{{.name = "gate", .extent = hidden}, {.name = "up", .extent = hidden}}
                       : Parts{}});
  down_ = RowParallel(table, unit, name + ".down", hidden, config.width,
                      {.bias = config.bias, .deviation = config.residual_deviation(), .parts = {}});
}

void Mlp::plan(UnitPlan& plan) {
  const std::vector<std::int64_t> up = up_.widths(plan.shares().tiles);
  std::vector<std::int64_t> hidden = up;
  if (gated_) {
    for (std::int64_t& width : hidden) width /= 2;
  }
  up_value_ = plan.keep_tiles(RecomputeCost::high, plan.rows(), up);
  const bool again = gated_ || plan.shares().exact_gelu;
  plan.overlay(
      [&] {
        active_ =
            plan.keep_tiles(again ? RecomputeCost::low : RecomputeCost::high, plan.rows(), hidden);
      },
      [&] { dup_ = plan.add_tiles(plan.between(), plan.rows(), up); });
}

void Mlp::plan_inner(UnitPlan& plan) {
  if (!gated_) return;
  std::vector<std::int64_t> hidden;
  for (const Slot& slot : active_) hidden.push_back(slot.width);
  dactive_ = plan.add_tiles(Area::scratch, plan.rows(), hidden);
}

void Mlp::activate(const UnitContext& context) const {
  const std::vector<Tensor> up = context.full(up_value_), active = context.full(active_);
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
  const std::vector<Tensor> up = context.full(up_value_);
  if (!gated_) return up_.forward(context, context.full(active_), x, up);
  up_.forward(context, up, x);
  activate(context);
}

void Mlp::recompute(const UnitContext& context, const Tensor& x) const {
  if (recomputes_from_input()) forward(context, x);
}

void Mlp::project(const UnitContext& context, const Summand& partial) const {
  down_.forward(context, partial, context.full(active_));
}

void Mlp::backward_output_weight(const UnitContext& context, const Tensor& dy) const {
  if (active_.front().area == Area::scratch) activate(context);
  down_.backward_weight(context, dy, context.full(active_));
}

void Mlp::backward_inner(const UnitContext& context, const Tensor& dy) const {
  const std::vector<Tensor> up = context.full(up_value_), dup = context.full(dup_);
  if (!gated_) return down_.backward_input(context, dup, dy, up);
  const std::vector<Tensor> dactive = context.full(dactive_);
  down_.backward_input(context, dactive, dy);
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (dup[i].elements() > 0) context.ops.swiglu_backward(dup[i], dactive[i], up[i]);
  }
}

void Mlp::backward_input_weight(const UnitContext& context, const Tensor& x) const {
  up_.backward_weight(context, context.full(dup_), x);
}

void Mlp::backward_input(const UnitContext& context, const Summand& partial) const {
  up_.backward_input(context, partial, context.full(dup_));
}

}  // namespace trireme::model
