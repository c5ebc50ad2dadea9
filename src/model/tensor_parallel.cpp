#include "trireme/model/tensor_parallel.hpp"

namespace trireme::model {

namespace {

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

Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

}  // namespace

void gather_rows(const UnitContext& context, const Tensor& full) {
  if (!context.shares.sequence_parallel || context.tensor.group.size() == 1) return;
  context.tensor.group
      .all_gather_v(flat(full), flat(context.local(full)), row_counts(context, full.extent(1)),
                    context.tensor.stream)
      .wait();
}

void sum_rows(const UnitContext& context, const Tensor& local, const Tensor& partial) {
  Tensor sum = context.local(partial);
  if (!context.shares.sequence_parallel || context.tensor.group.size() == 1) {
    reduce_over_tensor(context, partial, comm::Reduction::sum);
  } else {
    if (partial.type() == local.type()) sum = local;
    context.tensor.group
        .reduce_scatter_v(flat(sum), flat(partial), row_counts(context, partial.extent(1)),
                          comm::Reduction::sum, context.tensor.stream)
        .wait();
  }
  if (sum.data() != local.data()) context.ops.copy(local, sum);  // rounds
}

void reduce_over_tensor(const UnitContext& context, const Tensor& value,
                        comm::Reduction reduction) {
  if (context.tensor.group.size() == 1) return;
  context.tensor.group.all_reduce(flat(value), reduction, context.tensor.stream).wait();
}

int tree_levels(const params::Tiles& tiles) {
  int levels = 0;
  while ((1 << levels) < tiles.count) ++levels;
  return levels;
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

Tensor RegionDropout::backward(const UnitContext& context, BackwardPart part,
                               const Tensor& dy) const {
  const Tensor full = copies_ ? context.full(gradient_) : dy;
  if (!has_input(part)) return full;
  if (rate_ > 0) {
    context.ops.dropout(context.local(full), dy, context.local(context.batch.rows),
                        options(context));
  } else if (copies_) {
    context.ops.copy(context.local(full), dy);
  }
  gather_rows(context, full);
  return full;
}

}  // namespace trireme::model
