#include "trireme/model/tensor_parallel.hpp"

namespace trireme::model {

namespace {

/// Elements of each tensor rank's rows of a value [R, width].
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

void gather_rows(const UnitContext& context, const Tensor& full) {
  if (!context.shares.sequence_parallel || context.tensor.group.size() == 1) return;
  context.tensor.group
      .all_gather_v(flat(full), flat(own_rows(context, full)), row_counts(context, full.extent(1)),
                    context.tensor.stream)
      .wait();
}

void sum_rows(const UnitContext& context, const Tensor& own, const Tensor& partial) {
  Tensor sum = own_rows(context, partial);
  if (!context.shares.sequence_parallel || context.tensor.group.size() == 1) {
    reduce_over_tensor(context, partial, comm::Reduction::sum);
  } else {
    if (partial.type() == own.type()) sum = own;
    context.tensor.group
        .reduce_scatter_v(flat(sum), flat(partial), row_counts(context, partial.extent(1)),
                          comm::Reduction::sum, context.tensor.stream)
        .wait();
  }
  if (sum.data() != own.data()) context.ops.copy(own, sum);  // rounds
}

}  // namespace

Tensor own_rows(const UnitContext& context, const Tensor& full) {
  const params::Range rows = context.rows();
  return full.slice(0, rows.begin, rows.end);
}

void enter_region(const UnitContext& context, const Tensor& full) { gather_rows(context, full); }

void enter_region_backward(const UnitContext& context, const Tensor& own, const Tensor& partial) {
  sum_rows(context, own, partial);
}

void leave_region(const UnitContext& context, const Tensor& own, const Tensor& partial) {
  sum_rows(context, own, partial);
}

void leave_region_backward(const UnitContext& context, const Tensor& full) {
  gather_rows(context, full);
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

Tensor PartialSum::view(const UnitContext& context, const Tensor& own,
                        const UnitMemory& memory) const {
  return apart_ ? memory.view(partial_, context.batch.tokens()) : own;
}

std::vector<Tensor> PartialSum::levels(const UnitContext& context, const UnitMemory& memory) const {
  return memory.views(levels_, context.batch.tokens());
}

std::vector<Slot> UnitPlan::add_tiles(Area area, std::int64_t rows,
                                      const std::vector<std::int64_t>& widths, DType type) {
  std::vector<Slot> slots;
  slots.reserve(widths.size());
  for (const std::int64_t width : widths) slots.push_back(add(area, rows, width, type));
  return slots;
}

std::vector<Slot> UnitPlan::keep_tiles(Remake remake, std::int64_t rows,
                                       const std::vector<std::int64_t>& widths, DType type) {
  std::vector<Slot> slots;
  slots.reserve(widths.size());
  for (const std::int64_t width : widths) slots.push_back(keep(remake, rows, width, type));
  return slots;
}

}  // namespace trireme::model
