#include "trireme/model/embedding_head.hpp"

#include <algorithm>
#include <limits>

namespace trireme::model {

namespace {

/// Logits held at once: at least so many bytes, and so many times the rows' elements, which a
/// block's backward needs anyway. Every block of rows reads and writes the weight's whole gradient:
/// for GPT-2 124M and 8,192 tokens 17 blocks of 48 MiB do so, or one of at most 1 GiB.
constexpr std::int64_t least_logits = std::int64_t{48} << 20;
constexpr std::int64_t least_logits_on_gpu = std::int64_t{1} << 30;
constexpr std::int64_t logits_by_rows = 4;
constexpr std::int64_t logits_step = 64;  // elements; see Shares::products_on_gpu

/// A matrix with a row for each token.
int add_token_weight(params::ParameterTable& table, int unit, const char* name,
                     const ModelConfig& config, bool in_products) {
  return table.add(
      {.name = name,
       .shape = {config.vocabulary, config.width},
       .split = 0,
       .units = {unit},
       .decay = true,
       .in_products = in_products,
       .initialization = {params::Initialization::Kind::normal, config.init_deviation}});
}

/// The tokens of the rank's tile number `local`.
params::Range tile(const UnitContext& context, std::int64_t vocabulary, int local) {
  const params::Tiles& tiles = context.shares.tiles;
  return params::tile_of(vocabulary, tiles.first + local, tiles.all);
}

}  // namespace

Embedding::Embedding(params::ParameterTable& table, int unit, const ModelConfig& config)
    : vocabulary_(config.vocabulary), width_(config.width), dropout_(config.dropout, 0) {
  // Where it is not tied it is looked up alone, which multiplies nothing.
  token_ = add_token_weight(table, unit, "embedding.token.weight", config, config.tied);
  if (config.rotary()) return;
  position_ =
      table.add({.name = "embedding.position.weight",
                 .shape = {config.trained_length(), config.width},
                 .units = {unit},
                 .decay = true,
                 .initialization = {params::Initialization::Kind::normal, config.init_deviation}});
}

void Embedding::plan(UnitPlan& plan) {
  partial_.plan(plan, width_);
  dropout_.plan(plan, width_);
}

Tensor Embedding::local_positions(const UnitContext& context) const {
  return context.local(context.batch.positions.reshape({context.batch.tokens()}));
}

void Embedding::forward(const UnitContext& context, const Tensor& y, const Tensor& /*x*/) const {
  const Summand partial = partial_.of(context, y);
  // Each token's row is in one tile: the sum over tiles is exact in any order.
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    context.ops.embedding(partial.value, context.batch.inputs, context.values(token_, i),
                          {tile(context, vocabulary_, i).begin, vocabulary_},
                          i == 0 ? ops::Lookup::write : ops::Lookup::fill_in);
  }
  sum_rows(context, y, partial.value).finish(context);
  if (position_ >= 0) {
    context.ops.embedding(y, local_positions(context), context.values(position_), {},
                          ops::Lookup::add);
  }
  dropout_.forward(context, y);
}

void Embedding::backward(const UnitContext& context, BackwardPart part, const Tensor& /*dx*/,
                         const Tensor& dy, const Tensor& /*x*/) const {
  const Tensor full = dropout_.backward(context, part, dy).wait();
  if (!has_weight(part)) return;
  const Tensor local = context.local(full), positions = local_positions(context);
  for (std::size_t leaf = 0; leaf < context.leaves.size(); ++leaf) {
    const ParameterViews& gradients = *context.leaves[leaf].gradients;
    for (int i = 0; i < context.shares.tiles.count; ++i) {
      context.ops.embedding_backward(
          gradients(token_, i), context.of_leaf(context.batch.inputs, leaf),
          context.of_leaf(full, leaf), {tile(context, vocabulary_, i).begin, vocabulary_});
    }
    if (position_ < 0) continue;
    for_each_row_tile(context, leaf, [&](int copy, std::int64_t begin, std::int64_t end) {
      context.ops.embedding_backward(gradients(position_, copy), positions.slice(0, begin, end),
                                     local.slice(0, begin, end));
    });
  }
}

struct Head::RowBlock {
  Tensor normed;                    // [rows, C]
  Summand dnormed;                  // [rows, C], absent when not training
  Tensor targets, weights, factor;  // [rows]
  LeafSums sums;                    // of the leaf that has the block
};

std::int64_t Head::block_rows(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                              DType type, bool on_gpu) {
  const auto element = static_cast<std::int64_t>(size_of(type));
  const std::int64_t least = (on_gpu ? least_logits_on_gpu : least_logits) / element;
  const std::int64_t held = std::max(least, logits_by_rows * rows * width);
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
  weight_ = add_token_weight(table, unit, "head.weight", config, true);
}

void Head::plan(UnitPlan& plan) {
  const params::Tiles& tiles = plan.shares().tiles;
  block_ = block_rows(plan.leaf_rows(), width_, vocabulary_, plan.shares().compute,
                      plan.shares().products_on_gpu);
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
    const std::int64_t step = plan.shares().products_on_gpu ? logits_step : 1;
    logits_.push_back(plan.add(Area::scratch, block_, (own.size() + step - 1) / step * step));
  }
}

void Head::run(const UnitContext& context, const RowBlock& block) const {
  ops::Ops& ops = context.ops;
  const UnitMemory& memory = context.memory;
  const std::int64_t rows = block.normed.extent(0);
  std::vector<Tensor> logits = memory.views(logits_, rows);  // [rows, Vv] each
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    Tensor& own = logits[static_cast<std::size_t>(i)];
    own = own.slice(1, 0, tile(context, vocabulary_, i).size());
  }
  const auto used = [&](int i) { return logits[static_cast<std::size_t>(i)].extent(1) > 0; };
  const int tiles = context.shares.tiles.count;

  const Tensor maximum = memory.view(maximum_, rows).reshape({rows});
  // Σ exp, then the targets' logits
  const Summand both{memory.view(sums_, 2 * rows), memory.views(sum_levels_, 2 * rows)};
  const Tensor& sums = both.value;
  const auto part = [&](const Tensor& pair, int which) {
    return pair.slice(0, which * rows, (which + 1) * rows).reshape({rows});
  };
  std::vector<ops::Matmul> products;
  for (int i = 0; i < tiles; ++i) {
    if (!used(i)) continue;
    products.push_back({logits[static_cast<std::size_t>(i)],
                        block.normed,
                        context.values(weight_, i),
                        {.transpose_b = true}});
  }
  ops.independent_matmuls(products);
  if (context.shares.tiles.all == 1) {
    ops.softmax_statistics(maximum, part(sums, 0), part(sums, 1), logits.front(), block.targets);
  } else {
    ops.fill(maximum, -std::numeric_limits<float>::infinity());
    for (int i = 0; i < tiles; ++i) {
      if (used(i)) ops.row_maximum(maximum, logits[static_cast<std::size_t>(i)], true);
    }
    reduce_over_tensor(context, maximum, comm::Reduction::max);
    sum_tiles(context, both, [&](int i, const Tensor& to) {
      if (!used(i)) return ops.fill(to, 0);
      ops.exp_sum_and_target(part(to, 0), part(to, 1), logits[static_cast<std::size_t>(i)], maximum,
                             block.targets, tile(context, vocabulary_, i).begin);
    });
    reduce_over_tensor(context, sums, comm::Reduction::sum);
  }
  ops.weighted_loss(block.sums.loss, part(sums, 0), maximum, part(sums, 1), block.weights);
  if (!block.dnormed.value) return;

  products.clear();
  for (int i = 0; i < tiles; ++i) {
    if (!used(i)) continue;
    const Tensor& own = logits[static_cast<std::size_t>(i)];
    ops.cross_entropy_gradient(own, maximum, part(sums, 0), block.targets, block.factor,
                               tile(context, vocabulary_, i).begin);
    products.push_back({(*block.sums.gradients)(weight_, i),
                        own,
                        block.normed,
                        {.transpose_a = true, .accumulate = !block.sums.writes_gradients}});
  }
  ops.independent_matmuls(products);
  products.clear();
  for (int i = 0; i < tiles; ++i) {
    products.push_back({{}, logits[static_cast<std::size_t>(i)], context.values(weight_, i), {}});
  }
  ops.sum_of_matmuls(block.dnormed.value, block.dnormed.levels, products);
}

Tensor Head::normalize(const UnitContext& context, const Tensor& x) const {
  const Tensor normed = context.full(normed_);
  norm_.forward(context, context.local(normed), x);
  return gather_rows(context, normed).wait();
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
  // With sequence parallelism each rank gets rows of every block.
  const bool sums_blocks = train && !context.shares.sequence_parallel;
  std::vector<RowSum> sums;
  std::int64_t begin = 0;
  for (LeafSums leaf : context.leaves) {
    const std::int64_t leaf_end = begin + context.leaf_rows();
    while (begin < leaf_end) {
      const std::int64_t end = std::min(leaf_end, begin + block_);
      const auto part = [&](const Tensor& t) { return t ? t.slice(0, begin, end) : Tensor(); };
      run(context, {part(normed),
                    {part(partial.value), partial.levels},
                    part(batch.targets),
                    part(batch.weights),
                    part(factor),
                    leaf});
      if (sums_blocks) sums.push_back(sum_rows(context, part(local), part(partial.value)));
      leaf.writes_gradients = false;
      begin = end;
    }
  }
  if (train && !sums_blocks) sums.push_back(sum_rows(context, local, partial.value));
  for (const RowSum& sum : sums) sum.finish(context);
}

void Head::backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                    const Tensor& /*dy*/, const Tensor& x) const {
  norm_.backward(context, part, dx, context.local(dnormed_), x, {});
}

void Head::logits(const UnitContext& context, const Tensor& logits, const Tensor& x) const {
  const Tensor normed = normalize(context, x);
  context.ops.fill(logits.reshape({logits.elements()}), 0);
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    const params::Range own = tile(context, vocabulary_, i);
    if (own.size() == 0) continue;
    context.ops.matmul(logits.slice(1, own.begin, own.end), normed, context.values(weight_, i),
                       {.transpose_b = true, .group_rows = context.leaf_rows()});
  }
  reduce_over_tensor(context, logits, comm::Reduction::sum);
}

}  // namespace trireme::model
