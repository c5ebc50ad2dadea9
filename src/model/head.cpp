#include "trireme/model/head.hpp"

#include <algorithm>

namespace trireme::model {

namespace {

/// Logits held at once, in elements: 32 MB of fp32, past which larger products gain nothing.
constexpr std::int64_t logits_held = std::int64_t{8} << 20;

}  // namespace

std::int64_t Head::block_rows(std::int64_t rows, std::int64_t vocabulary) {
  return std::min(rows, std::max<std::int64_t>(64, logits_held / vocabulary));
}

Head::Head(params::ParameterTable& table, int unit, const ModelConfig& config, int token_row)
    : width_(config.width),
      vocabulary_(config.vocabulary),
      norm_(table, unit, "head.norm", config) {
  if (config.tied) {
    weight_ = token_row;
    table.share(token_row, unit);
    return;
  }
  params::Parameter weight{.name = "head.weight", .shape = {config.vocabulary, config.width}};
  weight.split.dimension = 0;
  weight.units = {unit};
  weight.decay = true;
  weight.in_products = true;
  weight.initialisation = {params::Initialisation::Kind::normal, config.init_deviation};
  weight_ = table.add(weight);
}

void Head::plan(UnitPlan& plan) {
  block_ = block_rows(plan.rows(), vocabulary_);
  norm_.plan(plan);
  dnormed_ = plan.add(Area::stash, width_);
  normed_ = plan.add(Area::scratch, width_);
  factor_ = plan.add(Area::scratch, 1);
  logits_ = plan.add(Area::scratch, vocabulary_, DType::f32, block_);
  maximum_ = plan.add(Area::scratch, 1, DType::f32, block_);
  sum_ = plan.add(Area::scratch, 1, DType::f32, block_);
  target_logit_ = plan.add(Area::scratch, 1, DType::f32, block_);
}

void Head::forward(const UnitContext& context, const Tensor& /*y*/, const Tensor& x,
                   const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const bool train = context.mode == Mode::train;
  const std::int64_t rows = x.extent(0);
  const Tensor& weight = context.values[static_cast<std::size_t>(weight_)];  // [V, C]
  const Tensor normed = memory.view(normed_, rows);                          // [R, C]
  norm_.forward(context, normed, x, memory);
  const Tensor factor = memory.view(factor_, rows).reshape({rows});
  if (train) {
    context.ops.copy(factor.reshape({1, rows}), batch.weights.reshape({1, rows}));
    context.ops.scale(factor, static_cast<float>(1.0 / context.denominator));
  }
  double loss = 0;
  for (std::int64_t begin = 0; begin < rows; begin += block_) {
    const std::int64_t end = std::min(rows, begin + block_), count = end - begin;
    const auto vector = [&](const Slot& slot) { return memory.view(slot, count).reshape({count}); };
    const auto part = [&](const Tensor& t) { return t.slice(0, begin, end); };
    const Tensor logits = memory.view(logits_, count);  // [count, V]
    const Tensor maximum = vector(maximum_), sum = vector(sum_),
                 target_logit = vector(target_logit_);
    const Tensor targets = part(batch.targets);
    context.ops.matmul(logits, part(normed), weight, {.transpose_b = true});
    context.ops.row_maximum(maximum, logits);
    context.ops.exp_sum_and_target(sum, target_logit, logits, maximum, targets, 0);
    loss += context.ops.weighted_loss(sum, maximum, target_logit, part(batch.weights));
    if (!train) continue;
    context.ops.cross_entropy_gradient(logits, maximum, sum, targets, part(factor), 0);
    context.ops.matmul(part(memory.view(dnormed_, rows)), logits, weight, {});
    context.ops.matmul(context.gradients[static_cast<std::size_t>(weight_)], logits, part(normed),
                       {.transpose_a = true, .accumulate = true});
  }
  *context.loss += loss;
}

void Head::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& /*dy*/,
                          const Tensor& x, const UnitMemory& memory) const {
  norm_.backward_input(context, dx, memory.view(dnormed_, x.extent(0)), x, memory, false);
}

void Head::backward_weight(const UnitContext& context, const Tensor& /*dy*/, const Tensor& x,
                           const UnitMemory& memory) const {
  norm_.backward_weight(context, memory.view(dnormed_, x.extent(0)), x, memory);
}

void Head::logits(const UnitContext& context, const Tensor& logits, const Tensor& x,
                  const UnitMemory& memory) const {
  const Tensor normed = memory.view(normed_, x.extent(0));
  norm_.forward(context, normed, x, memory);
  context.ops.matmul(logits, normed, context.values[static_cast<std::size_t>(weight_)],
                     {.transpose_b = true});
}

}  // namespace trireme::model
