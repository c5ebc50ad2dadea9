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
  const auto inner = [&] { layer_.plan_inner(plan); };
  const auto normed = [&] { normed_ = plan.keep(cost, plan.rows(), width_); };
  const auto dnormed = [&] { dnormed_ = plan.add(plan.between(), plan.local_rows(), width_); };
  if (plan.shares().tensor_ranks() > 1 && !partial_.apart()) {
    // dnormed is summed over ranks while the weight's gradient reads normed.
    plan.overlay(inner, [&] {
      normed();
      dnormed();
    });
  } else {
    plan.overlay(inner, normed, dnormed);
  }
}

template <class Layer>
RowGather ResidualBranch<Layer>::normalize(const UnitContext& context, const Tensor& x) const {
  const Tensor normed = context.full(normed_);
  norm_.forward(context, context.local(normed), x);
  return gather_rows(context, normed);
}

template <class Layer>
void ResidualBranch<Layer>::forward(const UnitContext& context, const Tensor& y,
                                    const Tensor& x) const {
  layer_.forward(context, normalize(context, x).wait());
  project(context, y);
}

template <class Layer>
void ResidualBranch<Layer>::forward_sum(const UnitContext& context, const Tensor& y,
                                        const Tensor& x, const Tensor& a, const Tensor& b) const {
  const Tensor normed = context.full(normed_);
  norm_.forward_sum(context, context.local(normed), x, a, b);
  layer_.forward(context, gather_rows(context, normed).wait());
  project(context, y);
}

template <class Layer>
void ResidualBranch<Layer>::project(const UnitContext& context, const Tensor& y) const {
  const Summand partial = partial_.of(context, y);
  const std::vector<params::Range> chunks = row_chunks(context.shares, context.batch.tokens());
  std::vector<RowSum> sums;
  for (const params::Range& rows : chunks) {
    const Tensor value = partial.value.slice(0, rows.begin, rows.end);
    const Tensor local = chunks.size() == 1 ? y : y.slice(0, rows.begin, rows.end);
    layer_.project(context, {value, partial.levels}, rows);
    sums.push_back(sum_rows(context, local, value));
  }
  for (const RowSum& sum : sums) sum.finish(context);
  dropout_.forward(context, y);
}

template <class Layer>
RowGather ResidualBranch<Layer>::recompute(const UnitContext& context, const Tensor& x) const {
  RowGather normed;
  const bool from_input = layer_.recomputes_from_input();
  if (normed_.area == Area::rebuilt || from_input) normed = normalize(context, x);
  layer_.recompute(context, from_input ? normed.wait() : Tensor());
  return normed;
}

template <class Layer>
void ResidualBranch<Layer>::backward(const UnitContext& context, BackwardPart part,
                                     const Tensor& dx, const Tensor& dy, const Tensor& x) const {
  // In this order scratch overlaps: each weight's gradient as soon as its factors exist. Over
  // tensor ranks the gradient for the input comes first: its sum overlaps with the weight's.
  const bool input = has_input(part), weight = has_weight(part);
  const bool overlaps = context.tensor.group.size() > 1;
  const RowGather gather = dropout_.backward(context, part, dy);
  if (weight) layer_.recompute_middle(context);
  const Tensor dlayer = gather.wait();
  if (weight) layer_.backward_output_weight(context, dlayer);
  if (input) layer_.backward_inner(context, dlayer);
  const auto input_weight = [&] {
    // Of this rank's rows only where they are all rows (see plan).
    if (normed_.area == Area::scratch) normalize(context, x).wait();
    layer_.backward_input_weight(context, context.full(normed_));
  };
  if (weight && !overlaps) input_weight();
  const Tensor dnormed = context.local(dnormed_);
  RowSum sum;
  if (input) {
    const Summand partial = partial_.of(context, dnormed);
    layer_.backward_input(context, partial);
    sum = sum_rows(context, dnormed, partial.value);
  }
  if (weight && overlaps) input_weight();
  sum.finish(context);
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
  mlp_.forward_sum(context, y, middle, x, middle);
  context.ops.add(y, middle, y);
}

void Block::recompute(const UnitContext& context, const Tensor& x) const {
  const Tensor middle = context.local(middle_);
  // The second norm's gather overlaps with attention, unless its input is recomputed.
  const bool kept = middle_.area != Area::rebuilt;
  RowGather second;
  if (kept) second = mlp_.recompute(context, middle);
  const RowGather first = attention_.recompute(context, x);
  if (!kept) {
    attention_.project(context, middle);
    context.ops.add(middle, x, middle);
    second = mlp_.recompute(context, middle);
  }
  first.wait();
  second.wait();
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
