#include "trireme/model/mlp.hpp"

namespace trireme::model {

Mlp::Mlp(params::ParameterTable& table, int unit, const std::string& name,
         const ModelConfig& config)
    : gated_(config.gated()), hidden_(config.hidden), up_width_(gated_ ? 2 * hidden_ : hidden_) {
  using Parts = std::vector<params::Part>;
  up_ = Linear(table, unit, name + (gated_ ? ".gate_up" : ".up"), config.width, up_width_,
               {.bias = config.bias,
                .deviation = config.init_deviation,
                .split = {0},
                .parts = gated_ ? Parts{{"gate", hidden_, 1}, {"up", hidden_, 1}} : Parts{}});
  down_ = Linear(
      table, unit, name + ".down", hidden_, config.width,
      {.bias = config.bias, .deviation = config.residual_deviation(), .split = {1}, .parts = {}});
}

void Mlp::plan(UnitPlan& plan) {
  up_value_ = plan.add(Area::stash, up_width_);
  active_ = plan.add(Area::stash, hidden_);
  dup_ = plan.add(Area::delta, up_width_);
  dactive_ = plan.add(Area::scratch, hidden_);
}

void Mlp::forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                  const UnitMemory& memory) const {
  const std::int64_t rows = x.extent(0);
  const Tensor up = memory.view(up_value_, rows);    // [R, F], gated [R, 2F]
  const Tensor active = memory.view(active_, rows);  // [R, F]
  up_.forward(context, up, x);
  if (gated_) {
    context.ops.swiglu(active, up);
  } else {
    context.ops.gelu(active, up);
  }
  down_.forward(context, y, active);
}

void Mlp::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                         const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  const Tensor up = memory.view(up_value_, rows);
  const Tensor dup = memory.view(dup_, rows);
  const Tensor dactive = memory.view(dactive_, rows);
  down_.backward_input(context, dactive, dy);
  if (gated_) {
    context.ops.swiglu_backward(dup, dactive, up);
  } else {
    context.ops.gelu_backward(dup, dactive, up);
  }
  up_.backward_input(context, dx, dup);
}

void Mlp::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                          const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  down_.backward_weight(context, dy, memory.view(active_, rows));
  up_.backward_weight(context, memory.view(dup_, rows), x);
}

}  // namespace trireme::model
