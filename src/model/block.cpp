#include "trireme/model/block.hpp"

namespace trireme::model {

Block::Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer,
             const Tensor& frequencies)
    : name_("blocks." + std::to_string(layer)),
      width_(config.width),
      layer_(layer),
      rate_(static_cast<float>(config.dropout)),
      norm1_(table, unit, name_ + ".norm1", config),
      attention_(table, unit, name_ + ".attention", config, layer, frequencies),
      norm2_(table, unit, name_ + ".norm2", config),
      mlp_(table, unit, name_ + ".mlp", config) {}

void Block::plan(UnitPlan& plan) {
  normed1_ = plan.add(Area::stash, width_);
  middle_ = plan.add(Area::stash, width_);
  normed2_ = plan.add(Area::stash, width_);
  dnormed1_ = plan.add(Area::delta, width_);
  dmiddle_ = plan.add(Area::delta, width_);
  dnormed2_ = plan.add(Area::delta, width_);
  if (rate_ > 0) {
    dattention_ = plan.add(Area::delta, width_);
    dmlp_ = plan.add(Area::delta, width_);
  }
  norm1_.plan(plan);
  norm2_.plan(plan);
  attention_.plan(plan);
  mlp_.plan(plan);
}

ops::Dropout Block::dropout(const UnitContext& context, Site site) const {
  const auto stream = static_cast<std::uint32_t>(3 * layer_) + static_cast<std::uint32_t>(site);
  return {rate_, {context.seed, Purpose::dropout, stream}};
}

void Block::join(const UnitContext& context, const Tensor& y, const Tensor& x, Site site) const {
  if (rate_ > 0 && context.mode == Mode::train) {
    context.ops.dropout(y, y, context.batch.rows, dropout(context, site));
  }
  context.ops.add(y, x, y);
}

Tensor Block::branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                              const UnitMemory& memory, Site site) const {
  if (rate_ == 0) return dy;
  const Tensor masked = memory.view(slot, dy.extent(0));
  context.ops.dropout(masked, dy, context.batch.rows, dropout(context, site));
  return masked;
}

void Block::forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                    const UnitMemory& memory) const {
  const std::int64_t rows = x.extent(0);
  const Tensor normed1 = memory.view(normed1_, rows);  // [R, C], as all here
  const Tensor middle = memory.view(middle_, rows);
  const Tensor normed2 = memory.view(normed2_, rows);
  norm1_.forward(context, normed1, x, memory);
  attention_.forward(context, middle, normed1, memory);
  join(context, middle, x, Site::attention);
  norm2_.forward(context, normed2, middle, memory);
  mlp_.forward(context, y, normed2, memory);
  join(context, y, middle, Site::mlp);
}

void Block::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                           const Tensor& x, const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  const Tensor dmiddle = memory.view(dmiddle_, rows);
  const Tensor dnormed1 = memory.view(dnormed1_, rows);
  const Tensor dnormed2 = memory.view(dnormed2_, rows);

  mlp_.backward_input(context, dnormed2, branch_gradient(context, dy, dmlp_, memory, Site::mlp),
                      memory);
  context.ops.copy(dmiddle, dy);
  norm2_.backward_input(context, dmiddle, dnormed2, memory.view(middle_, rows), memory, true);

  attention_.backward_input(context, dnormed1,
                            branch_gradient(context, dmiddle, dattention_, memory, Site::attention),
                            memory);
  context.ops.copy(dx, dmiddle);
  norm1_.backward_input(context, dx, dnormed1, x, memory, true);
}

void Block::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                            const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  const Tensor dmiddle = memory.view(dmiddle_, rows);
  const Tensor into_mlp = rate_ > 0 ? memory.view(dmlp_, rows) : dy;
  const Tensor into_attention = rate_ > 0 ? memory.view(dattention_, rows) : dmiddle;
  mlp_.backward_weight(context, into_mlp, memory.view(normed2_, rows), memory);
  norm2_.backward_weight(context, memory.view(dnormed2_, rows), memory.view(middle_, rows), memory);
  attention_.backward_weight(context, into_attention, memory.view(normed1_, rows), memory);
  norm1_.backward_weight(context, memory.view(dnormed1_, rows), x, memory);
}

}  // namespace trireme::model
