#include "trireme/model/block.hpp"

namespace trireme::model {

void Region::plan_dmiddle(UnitPlan& plan) {
  std::vector<std::int64_t> widths;
  for (const Slot& slot : middle_) widths.push_back(slot.width);
  dmiddle_ = plan.add_tiles(Area::scratch, plan.rows(), widths);
}

template <class Layer>
void ResidualBranch<Layer>::plan(UnitPlan& plan) {
  // Recomputing a gathered norm communicates, and backward for weights alone has no parameters.
  const bool gathered = plan.shares().sequence_parallel, split = plan.between() == Area::delta;
  const RecomputeCost cost = gathered || split ? RecomputeCost::medium : RecomputeCost::low;
  partial_.plan(plan, width_);
  norm_.plan(plan, RecomputeCost::high);
  dropout_.plan(plan, width_);
  layer_.plan(plan);
  plan.overlay([&] { layer_.plan_inner(plan); },
               [&] { normed_ = plan.keep(cost, plan.rows(), width_); },
               [&] { dnormed_ = plan.add(plan.between(), plan.local_rows(), width_); });
}

template <class Layer>
void ResidualBranch<Layer>::normalize(const UnitContext& context, const Tensor& x) const {
  const Tensor normed = context.full(normed_);
  norm_.forward(context, context.local(normed), x);
  gather_rows(context, normed);
}

template <class Layer>
void ResidualBranch<Layer>::forward(const UnitContext& context, const Tensor& y,
                                    const Tensor& x) const {
  normalize(context, x);
  layer_.forward(context, context.full(normed_));
  add_residual(context, y, x);
}

template <class Layer>
void ResidualBranch<Layer>::add_residual(const UnitContext& context, const Tensor& y,
                                         const Tensor& x) const {
  const Summand partial = partial_.of(context, y);
  layer_.project(context, partial);
  sum_rows(context, y, partial.value);
  dropout_.forward(context, y);
  context.ops.add(y, x, y);
}

template <class Layer>
void ResidualBranch<Layer>::recompute(const UnitContext& context, const Tensor& x) const {
  if (normed_.area == Area::rebuilt || layer_.recomputes_from_input()) normalize(context, x);
  layer_.recompute(context, context.full(normed_));
}

template <class Layer>
void ResidualBranch<Layer>::backward(const UnitContext& context, BackwardPart part,
                                     const Tensor& dx, const Tensor& dy, const Tensor& x) const {
  // In this order scratch overlaps: each weight's gradient as soon as its factors exist.
  const bool input = has_input(part), weight = has_weight(part);
  const Tensor dlayer = dropout_.backward(context, part, dy);
  if (weight) layer_.backward_output_weight(context, dlayer);
  if (input) layer_.backward_inner(context, dlayer);
  if (weight) {
    if (normed_.area == Area::scratch) normalize(context, x);
    layer_.backward_input_weight(context, context.full(normed_));
  }
  const Tensor dnormed = context.local(dnormed_);
  if (input) {
    const Summand partial = partial_.of(context, dnormed);
    layer_.backward_input(context, partial);
    sum_rows(context, dnormed, partial.value);
  }
  norm_.backward(context, part, dx, dnormed, x, dy);
}

Block::Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer)
    : name_("blocks." + std::to_string(layer)),
      width_(config.width),
      // Braces: parameters enter the table from left to right.
      attention_{Norm(table, unit, name_ + ".norm1", config),
                 Attention(table, unit, name_ + ".attention", config, layer), config,
                 static_cast<std::uint32_t>(3 * layer + 2)},
      mlp_{Norm(table, unit, name_ + ".norm2", config), Mlp(table, unit, name_ + ".mlp", config),
           config, static_cast<std::uint32_t>(3 * layer + 3)} {}

void Block::plan(UnitPlan& plan) {
  middle_ = plan.keep(RecomputeCost::high, plan.local_rows(), width_);
  if (plan.between() == Area::delta) dmiddle_ = plan.add(Area::delta, plan.local_rows(), width_);
  plan.overlay([&] { attention_.plan(plan); }, [&] { mlp_.plan(plan); });
}

void Block::forward(const UnitContext& context, const Tensor& y, const Tensor& x) const {
  const Tensor middle = context.local(middle_);
  attention_.forward(context, middle, x);
  mlp_.forward(context, y, middle);
}

void Block::recompute(const UnitContext& context, const Tensor& x) const {
  const Tensor middle = context.local(middle_);
  attention_.recompute(context, x);
  if (middle_.area == Area::rebuilt) attention_.add_residual(context, middle, x);
  mlp_.recompute(context, middle);
}

void Block::backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                     const Tensor& dy, const Tensor& x) const {
  const Tensor middle = context.local(middle_);
  // A split backward keeps the gradient for `middle` for the weights' part.
  const Tensor dmiddle = part == BackwardPart::all ? dx : context.local(dmiddle_);
  mlp_.backward(context, part, dmiddle, dy, middle);
  attention_.backward(context, part, dx, dmiddle, x);
}

}  // namespace trireme::model
