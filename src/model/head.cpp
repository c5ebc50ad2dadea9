#include "trireme/model/head.hpp"

#include <algorithm>
#include <limits>

namespace trireme::model {

namespace {

/// Logits held at once: at least so many bytes, and so many times the rows' elements, which a
/// block's backward needs anyway. Every block of rows reads and writes the weight's whole gradient.
constexpr std::int64_t least_logits = std::int64_t{48} << 20;
constexpr std::int64_t logits_by_rows = 4;

}  // namespace

struct Head::RowBlock {
  Tensor normed;                    // [rows, C]
  Summand dnormed;                  // [rows, C], absent when not training
  Tensor targets, weights, factor;  // [rows]
};

std::int64_t Head::block_rows(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                              DType type) {
  const auto element = static_cast<std::int64_t>(size_of(type));
  const std::int64_t held = std::max(least_logits / element, logits_by_rows * rows * width);
  return std::min(rows, std::max<std::int64_t>(64, held / vocabulary));
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
  weight.split = 0;
  weight.units = {unit};
  weight.decay = true;
  weight.in_products = true;
  weight.initialization = {params::Initialization::Kind::normal, config.init_deviation};
  weight_ = table.add(weight);
}

void Head::plan(UnitPlan& plan) {
  const params::Tiles& tiles = plan.shares().tiles;
  block_ = block_rows(plan.rows(), width_, vocabulary_, plan.shares().compute);
  norm_.plan(plan, RecomputeCost::never);
  dnormed_ = plan.keep(RecomputeCost::never, plan.local_rows(), width_);
  normed_ = plan.add(Area::scratch, plan.rows(), width_);
  partial_.plan(plan, width_);
  factor_ = plan.add(Area::scratch, plan.rows(), 1, DType::f32);
  maximum_ = plan.add(Area::scratch, block_, 1, DType::f32);
  sums_ = plan.add(Area::scratch, 2 * block_, 1, DType::f32);
  const std::vector<std::int64_t> levels(static_cast<std::size_t>(tree_levels(tiles)), 1);
  sum_levels_ = plan.add_tiles(Area::scratch, 2 * block_, levels, DType::f32);
  logits_.clear();
  for (int i = 0; i < tiles.count; ++i) {
    const params::Range own = params::tile_of(vocabulary_, tiles.first + i, tiles.all);
    logits_.push_back(plan.add(Area::scratch, block_, own.size()));
  }
}

params::Range Head::tile(const UnitContext& context, int local) const {
  const params::Tiles& tiles = context.shares.tiles;
  return params::tile_of(vocabulary_, tiles.first + local, tiles.all);
}

void Head::run(const UnitContext& context, const RowBlock& block) const {
  ops::Ops& ops = context.ops;
  const UnitMemory& memory = context.memory;
  const std::int64_t rows = block.normed.extent(0);
  const std::vector<Tensor> logits = memory.views(logits_, rows);  // [rows, Vv] each
  const auto used = [&](int i) { return logits[static_cast<std::size_t>(i)].extent(1) > 0; };
  const int tiles = context.shares.tiles.count;

  const Tensor maximum = memory.view(maximum_, rows).reshape({rows});
  ops.fill(maximum, -std::numeric_limits<float>::infinity());
  for (int i = 0; i < tiles; ++i) {
    if (!used(i)) continue;
    const Tensor& own = logits[static_cast<std::size_t>(i)];
    ops.matmul(own, block.normed, context.values(weight_, i), {.transpose_b = true});
    ops.row_maximum(maximum, own, true);
  }
  reduce_over_tensor(context, maximum, comm::Reduction::max);

  // Σ exp, then the targets' logits
  const Summand both{memory.view(sums_, 2 * rows), memory.views(sum_levels_, 2 * rows)};
  const Tensor& sums = both.value;
  const auto part = [&](const Tensor& pair, int which) {
    return pair.slice(0, which * rows, (which + 1) * rows).reshape({rows});
  };
  sum_tiles(context, both, [&](int i, const Tensor& to) {
    if (!used(i)) return ops.fill(to, 0);
    ops.exp_sum_and_target(part(to, 0), part(to, 1), logits[static_cast<std::size_t>(i)], maximum,
                           block.targets, tile(context, i).begin);
  });
  reduce_over_tensor(context, sums, comm::Reduction::sum);
  ops.weighted_loss(context.loss, part(sums, 0), maximum, part(sums, 1), block.weights);
  if (!block.dnormed.value) return;

  for (int i = 0; i < tiles; ++i) {
    if (!used(i)) continue;
    const Tensor& own = logits[static_cast<std::size_t>(i)];
    ops.cross_entropy_gradient(own, maximum, part(sums, 0), block.targets, block.factor,
                               tile(context, i).begin);
    ops.matmul(context.gradients(weight_, i), own, block.normed,
               {.transpose_a = true, .accumulate = true});
  }
  sum_tiles(context, block.dnormed, [&](int i, const Tensor& to) {
    if (!used(i)) return ops.fill(to, 0);
    ops.matmul(to, logits[static_cast<std::size_t>(i)], context.values(weight_, i), {});
  });
}

Tensor Head::normalize(const UnitContext& context, const Tensor& x) const {
  const Tensor normed = context.full(normed_);
  norm_.forward(context, context.local(normed), x);
  gather_rows(context, normed);
  return normed;
}

void Head::forward(const UnitContext& context, const Tensor& /*y*/, const Tensor& x) const {
  const Microbatch& batch = context.batch;
  const bool train = context.mode == Mode::train;
  const std::int64_t rows = batch.tokens();
  const Tensor normed = normalize(context, x);
  const Tensor factor = context.full(factor_).reshape({rows});
  Tensor local;
  Summand partial;
  if (train) {
    context.ops.copy(factor.reshape({1, rows}), batch.weights.reshape({1, rows}));
    context.ops.scale_by(factor, context.gradient_factor);
    local = context.local(dnormed_);
    partial = partial_.of(context, local);
  }
  for (std::int64_t begin = 0; begin < rows; begin += block_) {
    const std::int64_t end = std::min(rows, begin + block_);
    const auto part = [&](const Tensor& t) { return t ? t.slice(0, begin, end) : Tensor(); };
    run(context, {part(normed),
                  {part(partial.value), partial.levels},
                  part(batch.targets),
                  part(batch.weights),
                  part(factor)});
  }
  if (train) sum_rows(context, local, partial.value);
}

void Head::backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                    const Tensor& /*dy*/, const Tensor& x) const {
  norm_.backward(context, part, dx, context.local(dnormed_), x, false);
}

void Head::logits(const UnitContext& context, const Tensor& logits, const Tensor& x) const {
  const Tensor normed = normalize(context, x);
  context.ops.fill(logits.reshape({logits.elements()}), 0);
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    const params::Range own = tile(context, i);
    if (own.size() == 0) continue;
    context.ops.matmul(logits.slice(1, own.begin, own.end), normed, context.values(weight_, i),
                       {.transpose_b = true});
  }
  reduce_over_tensor(context, logits, comm::Reduction::sum);
}

}  // namespace trireme::model
