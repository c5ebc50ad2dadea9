// The operators at the borders of tensor-parallel regions, in which every rank has all R rows of a
// call and some tiles of the parameters. Shoeybi et al., "Megatron-LM" (2019), figure 3: f is the
// identity forward and an all-reduce backward, g the reverse. With sequence parallelism
// (Korthikanti et al., 2022, figure 5) values outside are split by rows: g is an all-gather forward
// and a reduce-scatter backward, and ḡ the reverse.
//
// Layers with parameters: column-parallel and row-parallel linear maps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/pairwise.hpp"
#include "trireme/model/config.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::model {

/// A gather in flight.
class RowGather {
 public:
  RowGather() = default;
  RowGather(const Tensor& full, device::Event gathered)
      : full_(full), gathered_(std::move(gathered)) {}
  /// All rows [R, C].
  const Tensor& wait() const {
    gathered_.wait();
    return full_;
  }

 private:
  Tensor full_;
  device::Event gathered_;
};

/// A sum in flight.
class RowSum {
 public:
  RowSum() = default;
  RowSum(const Tensor& local, const Tensor& sum, device::Event summed)
      : local_(local), sum_(sum), summed_(std::move(summed)) {}
  /// Waits; then `local` has its values.
  void finish(const UnitContext& context) const;

 private:
  Tensor local_, sum_;
  device::Event summed_;
};

/// Starts `operation` on the context's stream, which then advances without its waiter; in a
/// capture, in each launch. It may refer to the context's `tensor`, and to nothing else that ends
/// before the graphs.
device::Event start_collective(const UnitContext& context,
                               std::function<device::Event()> operation);

/// Enters a region, and is the backward of leaving one: starts to complete `full` [R, C], whose
/// local rows are written. Computation until wait() must not touch it.
[[nodiscard]] RowGather gather_rows(const UnitContext& context, const Tensor& full);
/// Leaves a region, and is the backward of entering one: `partial` [R, C] is the rank's summand,
/// `local` [r, C] becomes the rank's rows of the sum. They may be the same memory without sequence
/// parallelism, where R may be some of the rows. Starts the sum; computation until finish() must
/// not touch `partial`, nor `local` if it has the type of `partial`.
[[nodiscard]] RowSum sum_rows(const UnitContext& context, const Tensor& local,
                              const Tensor& partial);

/// The rows of a call of `rows` tokens in the chunks in which a row-parallel product is computed,
/// so that the sum of each chunk overlaps with the product of the next. One chunk with one tensor
/// rank; in reproducible mode, since the bits of a product's row may depend on the other rows; and
/// with sequence parallelism, where each rank gets rows of every chunk.
std::vector<params::Range> row_chunks(const Shares& shares, std::int64_t rows);

/// One rank's summand [R, C] of what a region computes, itself a sum over the local tiles.
struct Summand {
  Tensor value;
  std::vector<Tensor> levels;  // scratch: log2(tiles) summands of the same shape
};

/// Memory of summands: of the result itself, or apart where the result is shorter (sequence
/// parallelism) or narrower than its summands.
class PartialSum {
 public:
  PartialSum() = default;
  /// `exact`: all summands of an element but one are zero.
  explicit PartialSum(bool exact) : exact_(exact) {}
  void plan(UnitPlan& plan, std::int64_t width);
  /// For the result `local` [r, C].
  Summand of(const UnitContext& context, const Tensor& local) const;
  /// Whether the summand is in memory of its own.
  bool apart() const { return apart_; }

 private:
  bool exact_ = false, apart_ = false;
  Slot partial_;
  std::vector<Slot> levels_;
};

/// Dropout of what leaves a region, on the rank's rows.
class RegionDropout {
 public:
  /// `stream`: of the random bits, one for each place in the model.
  RegionDropout(double rate, std::uint32_t stream)
      : rate_(static_cast<float>(rate)), stream_(stream) {}
  void plan(UnitPlan& plan, std::int64_t width);
  /// In place, when training.
  void forward(const UnitContext& context, const Tensor& y) const;
  /// Starts to gather all rows [R, C] of the gradient behind the mask: of `dy` itself where nothing
  /// changes, else of a copy, which the part for inputs makes.
  [[nodiscard]] RowGather backward(const UnitContext& context, BackwardPart part,
                                   const Tensor& dy) const;

 private:
  ops::Dropout options(const UnitContext& context) const {
    return {rate_, {context.seed, Purpose::dropout, stream_}};
  }
  float rate_;
  std::uint32_t stream_;
  bool copies_ = false;
  Slot gradient_;  // [R, C], only with dropout or sequence parallelism
};

/// sum = Σ over the local tiles of what compute(tile, to) writes, as a balanced binary tree that
/// the sum over ranks continues.
template <class Compute>
void sum_tiles(const UnitContext& context, const Summand& sum, const Compute& compute) {
  const auto slot = [&](std::int64_t i) {
    if (i == 0) return sum.value;
    return sum.levels[static_cast<std::size_t>(i - 1)].slice(0, 0, sum.value.extent(0));
  };
  sum_pairwise(
      context.shares.tiles.count,
      [&](std::int64_t tile, std::int64_t to) { compute(static_cast<int>(tile), slot(to)); },
      [&](std::int64_t to, std::int64_t from) { context.ops.add(slot(to), slot(to), slot(from)); });
}

/// Levels of the tree over the local tiles.
int tree_levels(const params::Tiles& tiles);

/// Views of the gradient of a table row that is not split: in reproducible mode one per tile of the
/// leaf's rows, so that sums over tokens have one order in every layout.
int gradient_copies(const Shares& shares);

/// visit(copy, begin, end) for each tile of the rank's rows of a leaf, counted from the rank's
/// first of the call.
template <class Visit>
void for_each_row_tile(const UnitContext& context, std::size_t leaf, const Visit& visit) {
  const Shares& shares = context.shares;
  const params::Range own = context.rows();
  const int copies = gradient_copies(shares);
  if (copies == 1 && !shares.reproducible) return visit(0, std::int64_t{0}, own.size());
  const int first = shares.sequence_parallel ? shares.tiles.first : 0;
  const std::int64_t before = static_cast<std::int64_t>(leaf) * context.leaf_rows() - own.begin;
  for (int copy = 0; copy < copies; ++copy) {
    const params::Range tile = params::tile_of(context.leaf_rows(), first + copy, shares.tiles.all);
    if (tile.size() > 0) visit(copy, before + tile.begin, before + tile.end);
  }
}

/// Where runs of neighbors begin that add to the same gradients, and the number of leaves.
std::vector<std::size_t> leaf_runs(const UnitContext& context);

/// visit(leaves), the numbers of leaves that add to different gradients and may thus do so at once,
/// until all leaves have been visited. Those that add to the same gradients come in their order.
template <class Visit>
void for_each_round(const UnitContext& context, const Visit& visit) {
  const std::vector<std::size_t> begins = leaf_runs(context);
  for (std::size_t i = 0;; ++i) {
    std::vector<std::size_t> round;
    for (std::size_t run = 0; run + 1 < begins.size(); ++run) {
      if (begins[run] + i < begins[run + 1]) round.push_back(begins[run] + i);
    }
    if (round.empty()) return;
    visit(std::span<const std::size_t>(round));
  }
}

/// Whether a call that has whole sums (UnitContext::whole_sums) adds up those of a row of the table
/// into the first leaf's: of a linear layer, and no head of it is in several tiles, whose sums over
/// tiles precede those over leaves.
bool adds_up_leaves(const params::Parameter& row, const params::Tiles& tiles);

/// Reduces `value` over the tensor group in place and waits.
void reduce_over_tensor(const UnitContext& context, const Tensor& value, comm::Reduction reduction);

struct LinearOptions {
  bool bias = false;
  double deviation = 0.02;
  std::vector<params::Part> parts;  // of the split dimension
};

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `out`: each tile computes columns of y.
/// Shoeybi et al. (2019), section 3.
class ColumnParallel {
 public:
  ColumnParallel() = default;
  ColumnParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
                 std::int64_t out, const LinearOptions& options);
  /// Widths of the local tiles of y.
  std::vector<std::int64_t> widths(const params::Tiles& tiles) const;
  /// y: one [R, out_v] per local tile. With `before_gelu`, of the same shapes, these become the
  /// linear map's values and y their GELU.
  void forward(const UnitContext& context, std::span<const Tensor> y, const Tensor& x,
               std::span<const Tensor> before_gelu = {}) const;
  /// partial [R, in]: this rank's summand of the gradient for x.
  void backward_input(const UnitContext& context, const Summand& partial,
                      std::span<const Tensor> dy) const;
  void backward_weight(const UnitContext& context, std::span<const Tensor> dy,
                       const Tensor& x) const;

 private:
  params::Parameter shape_;      // of the weight, for its tiles
  int weight_ = -1, bias_ = -1;  // rows of the table
};

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `in`: the tiles' products are summed.
/// Tile 0 adds the bias.
class RowParallel {
 public:
  RowParallel() = default;
  RowParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
              std::int64_t out, const LinearOptions& options);
  /// partial [R, out]: this rank's summand of y. x: one [R, in_v] per local tile.
  void forward(const UnitContext& context, const Summand& partial, std::span<const Tensor> x) const;
  /// dx: one [R, in_v] per local tile, from dy [R, out]. With `gelu_inputs`, of the same shapes, dx
  /// is the gradient for these, of which x is the GELU.
  void backward_input(const UnitContext& context, std::span<const Tensor> dx, const Tensor& dy,
                      std::span<const Tensor> gelu_inputs = {}) const;
  void backward_weight(const UnitContext& context, const Tensor& dy,
                       std::span<const Tensor> x) const;

 private:
  params::Parameter shape_;  // of the weight
  int weight_ = -1, bias_ = -1;
};

}  // namespace trireme::model
