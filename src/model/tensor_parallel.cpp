#include "trireme/model/tensor_parallel.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "trireme/comm/progress.hpp"

namespace trireme::model {

namespace {

// Smaller products are slower than what overlaps with them saves.
constexpr std::int64_t least_chunk_rows = 256, most_chunks = 4;

/// Elements of each tensor rank's rows of a tensor [R, width].
std::vector<std::int64_t> row_counts(const UnitContext& context, std::int64_t width) {
  const int ranks = context.tensor.group.size();
  params::Tiles tiles = context.shares.tiles;
  std::vector<std::int64_t> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    tiles.first = rank * tiles.count;
    counts.push_back(tiles.of(context.batch.tokens()).size() * width);
  }
  return counts;
}

int add_weight(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
               std::int64_t out, int dimension, const LinearOptions& options) {
  return table.add({.name = name + ".weight",
                    .shape = {out, in},
                    .split = dimension,
                    .parts = options.parts,
                    .units = {unit},
                    .decay = true,
                    .in_products = true,
                    .linear = true,
                    .initialization = {params::Initialization::Kind::normal, options.deviation}});
}

Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

/// All-reduces `value` in place.
device::Event start_sum(const UnitContext& context, const Tensor& value,
                        comm::Reduction reduction) {
  return start_collective(context, [&tensor = context.tensor, value = flat(value), reduction] {
    return tensor.group.all_reduce(value, reduction, tensor.stream);
  });
}

/// Factors of the gradient of the weight's local tile `tile`: leftᵀ·right over all rows of a call.
struct WeightProduct {
  std::size_t tile;
  Tensor left, right;  // [R, …]
};

/// Adds to the leaves' gradients of row `weight` of the table, which is `shape`. `bias`: the row
/// whose tiles are sums over the rows of `left`; negative: none.
void add_weight_products(const UnitContext& context, const params::Parameter& shape, int weight,
                         int bias, std::span<const WeightProduct> tiles) {
  const std::vector<LeafSums>& leaves = context.leaves;
  const std::vector<std::size_t> begins = leaf_runs(context);
  const std::size_t runs = begins.size() - 1;
  const bool joins = context.whole_sums && adds_up_leaves(shape, context.shares.tiles);
  TRIREME_ASSERT(!joins || std::has_single_bit(runs), "sums of {} leaves", runs);
  std::vector<ops::MatmulSum> sums;
  for (const WeightProduct& product : tiles) {
    const auto gradient = [&](std::size_t run) {
      return (*leaves[begins[run]].gradients)(weight, static_cast<int>(product.tile));
    };
    for (std::size_t run = 0; run < runs; ++run) {
      if (run == 0 || !joins) sums.push_back({.slots = {gradient(run)}, .products = {}});
      ops::MatmulSum& sum = sums.back();
      // Gradients of later leaves are free for sums of some terms.
      if (joins && std::has_single_bit(run)) {
        sum.slots.push_back(gradient(static_cast<std::size_t>(std::countr_zero(run)) + 1));
      }
      for (std::size_t leaf = begins[run]; leaf < begins[run + 1]; ++leaf) {
        const bool first = leaf == begins[run], writes = leaves[leaf].writes_gradients;
        // Where sums of some terms would be nothing may be kept.
        TRIREME_ASSERT(first ? writes || !joins : !writes, "leaf {} of {}", leaf, shape.name);
        ops::MatmulOptions options{.transpose_a = true, .accumulate = !writes};
        if (bias >= 0) {
          options.row_sum = (*leaves[leaf].gradients)(bias, static_cast<int>(product.tile));
        }
        sum.products.push_back({{},
                                context.of_leaf(product.left, leaf),
                                context.of_leaf(product.right, leaf),
                                options});
      }
    }
  }
  context.ops.independent_sums(sums);
}

}  // namespace

device::Event start_collective(const UnitContext& context,
                               std::function<device::Event()> operation) {
  auto started = [operation = std::move(operation), progress = context.tensor.progress] {
    device::Event event = operation();
    if (progress != nullptr) progress->wake();
    return event;
  };
  device::GraphSequence* const capture = context.tensor.capture;
  return capture != nullptr ? capture->start(std::move(started)) : started();
}

RowGather gather_rows(const UnitContext& context, const Tensor& full) {
  const TensorGroup& tensor = context.tensor;
  if (!context.shares.sequence_parallel || tensor.group.size() == 1) return {full, {}};
  return {full,
          start_collective(context, [&tensor, full = flat(full), own = flat(context.local(full)),
                                     counts = row_counts(context, full.extent(1))] {
            return tensor.group.all_gather_v(full, own, counts, tensor.stream);
          })};
}

RowSum sum_rows(const UnitContext& context, const Tensor& local, const Tensor& partial) {
  const TensorGroup& tensor = context.tensor;
  if (tensor.group.size() == 1) return {local, partial, {}};
  if (!context.shares.sequence_parallel) {
    return {local, partial, start_sum(context, partial, comm::Reduction::sum)};
  }
  const Tensor sum = partial.type() == local.type() ? local : context.local(partial);
  return {local, sum,
          start_collective(context, [&tensor, sum = flat(sum), partial = flat(partial),
                                     counts = row_counts(context, partial.extent(1))] {
            return tensor.group.reduce_scatter_v(sum, partial, counts, comm::Reduction::sum,
                                                 tensor.stream);
          })};
}

void RowSum::finish(const UnitContext& context) const {
  summed_.wait();
  if (sum_.data() != local_.data()) context.ops.copy(local_, sum_);  // rounds
}

std::vector<params::Range> row_chunks(const Shares& shares, std::int64_t rows) {
  const bool whole = !shares.chunks || shares.tensor_ranks() == 1 || shares.reproducible ||
                     shares.sequence_parallel;
  const std::int64_t count =
      whole ? 1 : std::clamp<std::int64_t>(rows / least_chunk_rows, 1, most_chunks);
  std::vector<params::Range> chunks;
  for (std::int64_t i = 0; i < count; ++i) {
    chunks.push_back({rows * i / count, rows * (i + 1) / count});
  }
  return chunks;
}

void reduce_over_tensor(const UnitContext& context, const Tensor& value,
                        comm::Reduction reduction) {
  if (context.tensor.group.size() == 1) return;
  start_sum(context, value, reduction).wait();
}

int tree_levels(const params::Tiles& tiles) {
  int levels = 0;
  while ((1 << levels) < tiles.count) ++levels;
  return levels;
}

std::vector<std::size_t> leaf_runs(const UnitContext& context) {
  const std::vector<LeafSums>& leaves = context.leaves;
  std::vector<std::size_t> begins;
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (leaf == 0 || leaves[leaf].gradients != leaves[leaf - 1].gradients) begins.push_back(leaf);
  }
  begins.push_back(leaves.size());
  return begins;
}

bool adds_up_leaves(const params::Parameter& row, const params::Tiles& tiles) {
  return row.linear && params::shared_grains(row, tiles.all).empty();
}

int gradient_copies(const Shares& shares) {
  if (!shares.reproducible) return 1;
  return shares.sequence_parallel ? shares.tiles.count : shares.tiles.all;
}

void PartialSum::plan(UnitPlan& plan, std::int64_t width) {
  const Shares& shares = plan.shares();
  const DType type = exact_ ? shares.compute : shares.partial();
  apart_ = shares.sequence_parallel || type != shares.compute;
  if (apart_) partial_ = plan.add(Area::scratch, plan.rows(), width, type);
  levels_ = plan.add_tiles(
      Area::scratch, plan.rows(),
      std::vector<std::int64_t>(static_cast<std::size_t>(tree_levels(shares.tiles)), width), type);
}

Summand PartialSum::of(const UnitContext& context, const Tensor& local) const {
  return {apart_ ? context.full(partial_) : local, context.full(levels_)};
}

void RegionDropout::plan(UnitPlan& plan, std::int64_t width) {
  copies_ = rate_ > 0 || plan.shares().sequence_parallel;
  if (copies_) gradient_ = plan.add(plan.between(), plan.rows(), width);
}

void RegionDropout::forward(const UnitContext& context, const Tensor& y) const {
  if (rate_ == 0 || context.mode != Mode::train) return;
  context.ops.dropout(y, y, context.local(context.batch.rows), options(context));
}

RowGather RegionDropout::backward(const UnitContext& context, BackwardPart part,
                                  const Tensor& dy) const {
  const Tensor full = copies_ ? context.full(gradient_) : dy;
  if (!has_input(part)) return {full, {}};
  if (rate_ > 0) {
    context.ops.dropout(context.local(full), dy, context.local(context.batch.rows),
                        options(context));
  } else if (copies_) {
    context.ops.copy(context.local(full), dy);
  }
  return gather_rows(context, full);
}

ColumnParallel::ColumnParallel(params::ParameterTable& table, int unit, const std::string& name,
                               std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight_(add_weight(table, unit, name, in, out, 0, options)) {
  shape_ = table.row(weight_);
  if (!options.bias) return;
  bias_ = table.add({.name = name + ".bias",
                     .shape = {out},
                     .split = 0,
                     .parts = options.parts,
                     .units = {unit}});
}

std::vector<std::int64_t> ColumnParallel::widths(const params::Tiles& tiles) const {
  std::vector<std::int64_t> result;
  for (int i = 0; i < tiles.count; ++i) {
    std::int64_t width = 0;
    for (const params::Range& slice : params::tile_slices(shape_, tiles.first + i, tiles.all)) {
      width += slice.size();
    }
    result.push_back(width);
  }
  return result;
}

void ColumnParallel::forward(const UnitContext& context, std::span<const Tensor> y, const Tensor& x,
                             std::span<const Tensor> before_gelu) const {
  std::vector<ops::Matmul> products;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i].elements() == 0) continue;
    const int tile = static_cast<int>(i);
    ops::MatmulOptions options{.transpose_b = true, .group_rows = context.leaf_rows()};
    if (bias_ >= 0) options.bias = context.values(bias_, tile);
    if (!before_gelu.empty()) options.before_gelu = before_gelu[i];
    products.push_back({y[i], x, context.values(weight_, tile), options});
  }
  context.ops.independent_matmuls(products);
}

void ColumnParallel::backward_input(const UnitContext& context, const Summand& partial,
                                    std::span<const Tensor> dy) const {
  std::vector<ops::Matmul> products;
  for (std::size_t i = 0; i < dy.size(); ++i) {
    products.push_back({{},
                        dy[i],
                        context.values(weight_, static_cast<int>(i)),
                        {.group_rows = context.leaf_rows()}});
  }
  context.ops.sum_of_matmuls(partial.value, partial.levels, products);
}

void ColumnParallel::backward_weight(const UnitContext& context, std::span<const Tensor> dy,
                                     const Tensor& x) const {
  std::vector<WeightProduct> products;
  for (std::size_t i = 0; i < dy.size(); ++i) {
    if (dy[i].elements() > 0) products.push_back({i, dy[i], x});
  }
  add_weight_products(context, shape_, weight_, bias_, products);
}

RowParallel::RowParallel(params::ParameterTable& table, int unit, const std::string& name,
                         std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight_(add_weight(table, unit, name, in, out, 1, options)) {
  shape_ = table.row(weight_);
  if (options.bias) bias_ = table.add({.name = name + ".bias", .shape = {out}, .units = {unit}});
}

void RowParallel::forward(const UnitContext& context, const Summand& partial,
                          std::span<const Tensor> x) const {
  std::vector<ops::Matmul> products;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int tile = static_cast<int>(i);
    ops::MatmulOptions options{.transpose_b = true, .group_rows = context.leaf_rows()};
    // An empty tile's product is zero, and the bias where it carries one.
    if (bias_ >= 0 && context.shares.tiles.first + tile == 0) options.bias = context.values(bias_);
    products.push_back({{}, x[i], context.values(weight_, tile), options});
  }
  context.ops.sum_of_matmuls(partial.value, partial.levels, products);
}

void RowParallel::backward_input(const UnitContext& context, std::span<const Tensor> dx,
                                 const Tensor& dy, std::span<const Tensor> gelu_inputs) const {
  std::vector<ops::Matmul> products;
  for (std::size_t i = 0; i < dx.size(); ++i) {
    if (dx[i].elements() == 0) continue;
    ops::MatmulOptions options{.group_rows = context.leaf_rows()};
    if (!gelu_inputs.empty()) options.gelu_input = gelu_inputs[i];
    products.push_back({dx[i], dy, context.values(weight_, static_cast<int>(i)), options});
  }
  context.ops.independent_matmuls(products);
}

void RowParallel::backward_weight(const UnitContext& context, const Tensor& dy,
                                  std::span<const Tensor> x) const {
  std::vector<WeightProduct> products;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].elements() > 0) products.push_back({i, dy, x[i]});
  }
  add_weight_products(context, shape_, weight_, -1, products);
  if (bias_ < 0) return;
  const Tensor local = context.local(dy);
  for_each_round(context, [&](std::span<const std::size_t> leaves) {
    std::vector<ops::RowSums> sums;
    for (const std::size_t leaf : leaves) {
      for_each_row_tile(context, leaf, [&](int copy, std::int64_t begin, std::int64_t end) {
        sums.push_back({.dgain = (*context.leaves[leaf].gradients)(bias_, copy),
                        .dy = local.slice(0, begin, end)});
      });
    }
    if (!sums.empty()) context.ops.independent_row_sums(sums);
  });
}

}  // namespace trireme::model
