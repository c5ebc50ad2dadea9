#include "trireme/model/mlp.hpp"

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
  up_value_ = plan.keep_tiles(Remake::dear, plan.rows(), up);
  active_ = plan.keep_tiles(Remake::dear, plan.rows(), hidden);
  dup_ = plan.add_tiles(Area::delta, plan.rows(), up);
  if (gated_) dactive_ = plan.add_tiles(Area::scratch, plan.rows(), hidden);
}

void Mlp::recompute(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const {
  const std::int64_t rows = x.extent(0);
  const std::vector<Tensor> up = memory.views(up_value_, rows);
  const std::vector<Tensor> active = memory.views(active_, rows);
  if (!gated_) return up_.forward(context, active, x, up);
  up_.forward(context, up, x);
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (active[i].elements() > 0) context.ops.swiglu(active[i], up[i]);
  }
}

void Mlp::forward(const UnitContext& context, const Tensor& partial, const Tensor& x,
                  const UnitMemory& memory, std::span<const Tensor> levels) const {
  recompute(context, x, memory);
  down_.forward(context, partial, memory.views(active_, x.extent(0)), levels);
}

void Mlp::backward_input(const UnitContext& context, const Tensor& partial, const Tensor& dy,
                         const UnitMemory& memory, std::span<const Tensor> levels) const {
  const std::int64_t rows = dy.extent(0);
  const std::vector<Tensor> up = memory.views(up_value_, rows);
  const std::vector<Tensor> dup = memory.views(dup_, rows);
  if (gated_) {
    const std::vector<Tensor> dactive = memory.views(dactive_, rows);
    down_.backward_input(context, dactive, dy);
    for (std::size_t i = 0; i < up.size(); ++i) {
      if (dup[i].elements() > 0) context.ops.swiglu_backward(dup[i], dactive[i], up[i]);
    }
  } else {
    down_.backward_input(context, dup, dy, up);
  }
  up_.backward_input(context, partial, dup, levels);
}

void Mlp::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                          const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  down_.backward_weight(context, dy, memory.views(active_, rows));
  up_.backward_weight(context, memory.views(dup_, rows), x);
}

}  // namespace trireme::model
