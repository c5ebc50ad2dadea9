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
void ResidualBranch<Layer>::enter(const UnitContext& context, const Tensor& x) const {
  layer_.project_in(context, normalize(context, x).wait());
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
void ResidualBranch<Layer>::begin_backward(const UnitContext& context, BackwardPart part,
                                           const Tensor& dy) const {
  const RowGather gather = dropout_.backward(context, part, dy);
  if (has_weight(part)) layer_.recompute_middle(context);
  const Tensor dlayer = gather.wait();
  // In this order scratch overlaps: each weight's gradient as soon as its factors exist.
  if (has_weight(part)) layer_.backward_output_weight(context, dlayer);
  if (has_input(part)) layer_.backward_inner(context, dlayer);
}

template <class Layer>
void ResidualBranch<Layer>::end_backward(const UnitContext& context, BackwardPart part,
                                         const Tensor& dx, const Tensor& dy,
                                         const Tensor& x) const {
  // Over tensor ranks the gradient for the input comes first: its sum overlaps with the weight's.
  const bool input = has_input(part), weight = has_weight(part);
  const bool overlaps = context.tensor.group.size() > 1;
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

namespace {

template <class Call>
std::vector<const UnitContext*> contexts_of(std::span<const Call> calls) {
  std::vector<const UnitContext*> contexts;
  for (const Call& call : calls) contexts.push_back(&call.context);
  return contexts;
}

}  // namespace

void Block::forward(const UnitContext& context, const Tensor& y, const Tensor& x) const {
  const ForwardCall call{context, y, x};
  forward_pairs({&call, 1});
}

void Block::recompute(const UnitContext& context, const Tensor& x) const {
  const BackwardCall call{context, {}, {}, x};
  recompute_pairs({&call, 1});
}

void Block::backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                     const Tensor& dy, const Tensor& x) const {
  const BackwardCall call{context, dx, dy, x};
  backward_pairs({&call, 1}, part);
}

void Block::forward_pairs(std::span<const ForwardCall> calls) const {
  for (const ForwardCall& call : calls) attention_.enter(call.context, call.x);
  attention_.layer().attend(contexts_of(calls));
  for (const auto& [context, y, x] : calls) {
    const Tensor middle = context.local(middle_);
    attention_.project(context, middle);
    mlp_.forward_sum(context, y, middle, x, middle);
    context.ops.add(y, middle, y);
  }
}

void Block::recompute_pairs(std::span<const BackwardCall> calls) const {
  // The second norm's gather overlaps with attention, unless its input is recomputed.
  const bool kept = middle_.area != Area::rebuilt;
  std::vector<RowGather> gathers;
  for (const BackwardCall& call : calls) {
    if (kept) gathers.push_back(mlp_.recompute(call.context, call.context.local(middle_)));
    gathers.push_back(attention_.recompute(call.context, call.x));
  }
  attention_.layer().recompute_attend(contexts_of(calls));
  for (const BackwardCall& call : calls) {
    if (kept) continue;
    const Tensor middle = call.context.local(middle_);
    attention_.project(call.context, middle);
    call.context.ops.add(middle, call.x, middle);
    gathers.push_back(mlp_.recompute(call.context, middle));
  }
  for (const RowGather& gather : gathers) gather.wait();
}

void Block::backward_pairs(std::span<const BackwardCall> calls, BackwardPart part) const {
  // A split backward keeps the gradient for `middle` for the weights' part.
  const auto dmiddle = [&](const BackwardCall& call) {
    return part == BackwardPart::all ? call.dx : call.context.local(dmiddle_);
  };
  for (const BackwardCall& call : calls) {
    const Tensor middle = call.context.local(middle_);
    mlp_.begin_backward(call.context, part, call.dy);
    mlp_.end_backward(call.context, part, dmiddle(call), call.dy, middle);
    attention_.begin_backward(call.context, part, dmiddle(call));
  }
  if (has_input(part)) attention_.layer().attend_backward(contexts_of(calls));
  for (const BackwardCall& call : calls) {
    attention_.end_backward(call.context, part, call.dx, dmiddle(call), call.x);
  }
}

}  // namespace trireme::model
