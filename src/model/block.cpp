#include "trireme/model/block.hpp"

namespace trireme::model {

Block::Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer)
    : name_("blocks." + std::to_string(layer)),
      width_(config.width),
      layer_(layer),
      rate_(static_cast<float>(config.dropout)),
      norm1_(table, unit, name_ + ".norm1", config),
      attention_(table, unit, name_ + ".attention", config, layer),
      norm2_(table, unit, name_ + ".norm2", config),
      mlp_(table, unit, name_ + ".mlp", config) {}

void Block::plan(UnitPlan& plan) {
  const std::int64_t all = plan.rows(), own = plan.local_rows();
  const bool copies = copies_gradient(plan.shares()), splits = plan.between() == Area::delta;
  // A norm's output that has to be gathered is not cheap; and backward for weights, apart, has no
  // parameters to make it from.
  const Remake norm = plan.shares().sequence_parallel || splits ? Remake::fair : Remake::cheap;
  middle_ = plan.keep(Remake::dear, own, width_);
  if (splits) dmiddle_ = plan.add(Area::delta, own, width_);
  partial_.plan(plan, width_);
  norm1_.plan(plan, Remake::dear);
  norm2_.plan(plan, Remake::dear);
  const auto half = [&](auto& branch, Slot& normed, Slot& dnormed, Slot& dbranch) {
    if (copies) dbranch = plan.add(plan.between(), all, width_);
    branch.plan(plan);
    plan.overlay([&] { branch.plan_inside(plan); }, [&] { normed = plan.keep(norm, all, width_); },
                 [&] { dnormed = plan.add(plan.between(), own, width_); });
  };
  plan.overlay([&] { half(attention_, normed1_, dnormed1_, dattention_); },
               [&] { half(mlp_, normed2_, dnormed2_, dmlp_); });
}

ops::Dropout Block::dropout(const UnitContext& context, Site site) const {
  const auto stream = static_cast<std::uint32_t>(3 * layer_) + static_cast<std::uint32_t>(site);
  return {rate_, {context.seed, Purpose::dropout, stream}};
}

void Block::join(const UnitContext& context, const Tensor& y, const Tensor& x, Site site) const {
  if (rate_ > 0 && context.mode == Mode::train) {
    context.ops.dropout(y, y, own_rows(context, context.batch.rows), dropout(context, site));
  }
  context.ops.add(y, x, y);
}

void Block::normalize(const UnitContext& context, const Norm& norm, const Tensor& normed,
                      const Tensor& x, const UnitMemory& memory) const {
  norm.forward(context, own_rows(context, normed), x, memory);
  enter_region(context, normed);
}

void Block::attention_half(const UnitContext& context, const Tensor& x,
                           const UnitMemory& memory) const {
  const Tensor middle = memory.view(middle_, x.extent(0));
  const Tensor partial = partial_.view(context, middle, memory);
  attention_.project(context, partial, memory, partial_.levels(context, memory));
  leave_region(context, middle, partial);
  join(context, middle, x, Site::attention);
}

void Block::forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                    const UnitMemory& memory) const {
  const std::int64_t all = context.batch.tokens();
  const Tensor normed1 = memory.view(normed1_, all);
  const Tensor middle = memory.view(middle_, x.extent(0));
  const Tensor normed2 = memory.view(normed2_, all);
  const std::vector<Tensor> levels = partial_.levels(context, memory);
  normalize(context, norm1_, normed1, x, memory);
  {
    const Tensor partial = partial_.view(context, middle, memory);
    attention_.forward(context, partial, normed1, memory, levels);
    leave_region(context, middle, partial);
    join(context, middle, x, Site::attention);
  }
  normalize(context, norm2_, normed2, middle, memory);
  const Tensor partial = partial_.view(context, y, memory);
  mlp_.forward(context, partial, normed2, memory, levels);
  leave_region(context, y, partial);
  join(context, y, middle, Site::mlp);
}

void Block::recompute(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const {
  const std::int64_t all = context.batch.tokens();
  const Tensor normed1 = memory.view(normed1_, all);
  const Tensor middle = memory.view(middle_, x.extent(0));
  const Tensor normed2 = memory.view(normed2_, all);
  const auto makes = [](const Slot& normed, const auto& branch) {
    return normed.area == Area::rebuilt || branch.recomputes_from_input();
  };
  if (makes(normed1_, attention_)) normalize(context, norm1_, normed1, x, memory);
  attention_.recompute(context, normed1, memory);
  if (middle_.area == Area::rebuilt) attention_half(context, x, memory);
  if (makes(normed2_, mlp_)) normalize(context, norm2_, normed2, middle, memory);
  mlp_.recompute(context, normed2, memory);
}

Tensor Block::branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                              const UnitMemory& memory) const {
  return copies_gradient(context.shares) ? memory.view(slot, context.batch.tokens()) : dy;
}

Tensor Block::branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                              const UnitMemory& memory, Site site) const {
  const Tensor whole = branch_gradient(context, dy, slot, memory);
  if (rate_ > 0) {
    context.ops.dropout(own_rows(context, whole), dy, own_rows(context, context.batch.rows),
                        dropout(context, site));
  } else if (whole.data() != dy.data()) {
    context.ops.copy(own_rows(context, whole), dy);
  }
  leave_region_backward(context, whole);
  return whole;
}

void Block::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                           const Tensor& x, const UnitMemory& memory) const {
  const std::int64_t own = dy.extent(0);
  const Tensor dmiddle = memory.view(dmiddle_, own);
  const Tensor dnormed1 = memory.view(dnormed1_, own);
  const Tensor dnormed2 = memory.view(dnormed2_, own);
  const std::vector<Tensor> levels = partial_.levels(context, memory);

  const Tensor into_mlp = branch_gradient(context, dy, dmlp_, memory, Site::mlp);
  const Tensor partial2 = partial_.view(context, dnormed2, memory);
  mlp_.backward_inside(context, into_mlp, memory);
  mlp_.backward_input(context, partial2, memory, levels);
  enter_region_backward(context, dnormed2, partial2);
  context.ops.copy(dmiddle, dy);
  norm2_.backward_input(context, dmiddle, dnormed2, memory.view(middle_, own), memory, true);

  const Tensor into_attention =
      branch_gradient(context, dmiddle, dattention_, memory, Site::attention);
  const Tensor partial1 = partial_.view(context, dnormed1, memory);
  attention_.backward_inside(context, into_attention, memory);
  attention_.backward_input(context, partial1, memory, levels);
  enter_region_backward(context, dnormed1, partial1);
  context.ops.copy(dx, dmiddle);
  norm1_.backward_input(context, dx, dnormed1, x, memory, true);
}

void Block::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                            const UnitMemory& memory) const {
  const std::int64_t own = dy.extent(0), all = context.batch.tokens();
  const Tensor dmiddle = memory.view(dmiddle_, own);
  mlp_.backward_output_weight(context, branch_gradient(context, dy, dmlp_, memory), memory);
  mlp_.backward_input_weight(context, memory.view(normed2_, all), memory);
  norm2_.backward_weight(context, memory.view(dnormed2_, own), memory.view(middle_, own), memory);
  attention_.backward_output_weight(context, branch_gradient(context, dmiddle, dattention_, memory),
                                    memory);
  attention_.backward_input_weight(context, memory.view(normed1_, all), memory);
  norm1_.backward_weight(context, memory.view(dnormed1_, own), x, memory);
}

template <class Branch>
void Block::backward_half(const UnitContext& context, const Branch& branch, const Norm& norm,
                          const Slot& normed_slot, const Slot& dnormed_slot, const Tensor& dx,
                          const Tensor& into, const Tensor& x, const UnitMemory& memory) const {
  branch.backward_output_weight(context, into, memory);
  branch.backward_inside(context, into, memory);
  const Tensor normed = memory.view(normed_slot, context.batch.tokens());
  if (normed_slot.area == Area::scratch) normalize(context, norm, normed, x, memory);
  branch.backward_input_weight(context, normed, memory);
  const Tensor dnormed = memory.view(dnormed_slot, dx.extent(0));
  const Tensor partial = partial_.view(context, dnormed, memory);
  branch.backward_input(context, partial, memory, partial_.levels(context, memory));
  enter_region_backward(context, dnormed, partial);
  norm.backward_weight(context, dnormed, x, memory);
  norm.backward_input(context, dx, dnormed, x, memory, true);
}

void Block::backward(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                     const Tensor& x, const UnitMemory& memory) const {
  recompute(context, x, memory);
  context.ops.copy(dx, dy);  // past both branches; each half adds its own
  backward_half(context, mlp_, norm2_, normed2_, dnormed2_, dx,
                branch_gradient(context, dx, dmlp_, memory, Site::mlp),
                memory.view(middle_, dx.extent(0)), memory);
  backward_half(context, attention_, norm1_, normed1_, dnormed1_, dx,
                branch_gradient(context, dx, dattention_, memory, Site::attention), x, memory);
}

}  // namespace trireme::model
