// A stage is a list of units: embedding, blocks, head with loss. A unit computes forward and
// backward with the operations of ops.hpp on one or more *leaves*: a leaf is a micro-batch, or in
// reproducible mode one of its sequences, and has its own sums over tokens. Shapes: R = B·T tokens
// (rows) of a call, r the rank's rows (R without sequence parallelism), C channels, H heads, G
// key/value heads, D head size, F MLP width, V vocabulary; a suffix v marks one tile of a split
// dimension.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/interface.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::comm {
class Progress;
}

namespace trireme::model {

/// How long an intermediate value lives. A unit requests slots in these areas when it is planned,
/// and the stage places them in arenas, so that activation memory is known before training.
enum class Area : std::uint8_t {
  stash,    // from forward until the last backward of the same micro-batch
  rebuilt,  // from recomputation (or forward) until the unit's last backward
  delta,    // from backward for inputs until backward for weights, where these are two calls
  scratch,  // within one call
  count
};
constexpr std::size_t area_count = static_cast<std::size_t>(Area::count);

/// What backward recomputes instead of keeping it; each policy includes those before it.
/// Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022).
enum class Recompute : std::uint8_t {
  none,
  cheap,      // one pass over kept values: norms, activation functions
  selective,  // attention too
  full        // everything but each unit's input
};

/// Cost of recomputing a value, which decides under which policies it is kept.
enum class RecomputeCost : std::uint8_t {
  never,   // kept under every policy
  high,    // recomputed under `full`
  medium,  // recomputed under `selective` and `full`
  low      // recomputed under all but `none`, into scratch where it is read
};

/// A value of `width` elements for each of at most `rows` rows.
struct Slot {
  Area area = Area::scratch;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::size_t offset = 0;  // bytes from the beginning of the unit's area
};

/// Context parallelism: a sequence of T tokens is cut into 2·pairs equal chunks; a pair is chunks
/// p and 2·pairs − 1 − p, so that causal attention costs the same for each. This rank has `count`
/// pairs from `first` on of every sequence. One pair: the whole sequence, which is not cut.
struct ContextPart {
  int pairs = 1, first = 0, count = 1;
  bool cuts() const { return pairs > 1; }
  int ranks() const { return pairs / count; }
  /// The chunk of pair `pair` that comes first (half 0) or last (half 1) in the sequence.
  int chunk(int pair, int half) const { return half == 0 ? pair : 2 * pairs - 1 - pair; }
};

/// A rank's share of the work, as far as memory depends on it.
struct Shares {
  params::Tiles tiles;  // of split parameters
  ContextPart context;
  /// Keys and values pass around the context ranks, and are not gathered.
  bool ring = false;
  /// Tiles of a key/value group (comm::GroupKind::kv), outside of which no other tile has one of
  /// this rank's key/value heads; 0: all tiles.
  int kv_tiles = 0;
  bool sequence_parallel = false;  // norms, dropout and residuals on the rank's rows only
  bool reproducible = false;
  Recompute recompute = Recompute::none;
  /// A GELU fused into a product has the bits of a separate pass, which can thus recompute it.
  bool exact_gelu = true;
  /// Rows of logits begin 64 elements or a multiple apart, since products on GPUs read and write 16
  /// bytes at once and a vocabulary of 50,257 has only odd rows; and more of them are held at once.
  bool products_on_gpu = false;
  /// Row-parallel products are cut into chunks, whose sums overlap with the next one's product.
  bool chunks = true;
  /// Of activations and of the factors of products. Parameters are fp32, or copies in this type, or
  /// fp32 masters (state::StateOptions::reads_masters).
  DType compute = DType::f32;

  int tensor_ranks() const { return tiles.all / tiles.count; }
  bool narrow() const { return compute != DType::f32; }
  /// Of summands across tiles and ranks: in reproducible mode rounded once, after the sum.
  DType partial() const { return reproducible ? DType::f32 : compute; }
  /// The rank's rows of a call of `all` tokens outside the tensor-parallel regions.
  params::Range rows(std::int64_t all) const {
    return sequence_parallel ? tiles.of(all) : params::Range{0, all};
  }
};

/// Collects the slots of one unit for calls of `rows` tokens in `leaves` equal leaves, of the
/// compute type by default. `splits`: backward for inputs and backward for weights are two calls,
/// with other units and micro-batches in between.
class UnitPlan {
 public:
  UnitPlan(std::int64_t rows, const Shares& shares, bool splits, int leaves = 1)
      : rows_(rows), leaf_rows_(rows / leaves), shares_(shares), splits_(splits) {}
  std::int64_t rows() const { return rows_; }
  std::int64_t leaf_rows() const { return leaf_rows_; }
  std::int64_t local_rows() const { return shares_.rows(rows_).size(); }
  const Shares& shares() const { return shares_; }

  using OptionalType = std::optional<DType>;  // absent: the compute type
  Slot add(Area area, std::int64_t rows, std::int64_t width, OptionalType type = {}) {
    std::size_t& end = bytes_[static_cast<std::size_t>(area)];
    const Slot slot{area, type.value_or(shares_.compute), rows, width, end};
    end += device::aligned(static_cast<std::size_t>(rows * width) * size_of(slot.type));
    return slot;
  }
  /// One slot per local tile, widths[i] elements wide.
  std::vector<Slot> add_tiles(Area area, std::int64_t rows, const std::vector<std::int64_t>& widths,
                              OptionalType type = {}) {
    std::vector<Slot> slots;
    slots.reserve(widths.size());
    for (const std::int64_t width : widths) slots.push_back(add(area, rows, width, type));
    return slots;
  }
  /// A value that backward needs: kept from forward, or recomputed.
  Slot keep(RecomputeCost cost, std::int64_t rows, std::int64_t width, OptionalType type = {}) {
    return add(area_of(cost), rows, width, type);
  }
  std::vector<Slot> keep_tiles(RecomputeCost cost, std::int64_t rows,
                               const std::vector<std::int64_t>& widths, OptionalType type = {}) {
    return add_tiles(area_of(cost), rows, widths, type);
  }
  /// Area of gradients that backward for inputs leaves for backward for weights.
  Area between() const { return splits_ ? Area::delta : Area::scratch; }
  /// Alternatives of which one at a time is in use: the scratch that each of `plans` adds overlaps
  /// that of the others.
  template <class... Plans>
  void overlay(const Plans&... plans) {
    std::size_t& end = bytes_[static_cast<std::size_t>(Area::scratch)];
    const std::size_t begin = end;
    std::size_t farthest = begin;
    const auto alternative = [&](const auto& plan) {
      end = begin;
      plan();
      farthest = std::max(farthest, end);
    };
    (alternative(plans), ...);
    end = farthest;
  }
  std::size_t bytes(Area area) const { return bytes_[static_cast<std::size_t>(area)]; }

 private:
  Area area_of(RecomputeCost cost) const {
    const Recompute policy = shares_.recompute;
    switch (cost) {
      case RecomputeCost::never:
        return Area::stash;
      case RecomputeCost::high:
        return policy >= Recompute::full ? Area::rebuilt : Area::stash;
      case RecomputeCost::medium:
        return policy >= Recompute::selective ? Area::rebuilt : Area::stash;
      case RecomputeCost::low:
        return policy >= Recompute::cheap ? Area::scratch : Area::stash;
    }
    no_case_for(cost);
  }

  std::int64_t rows_, leaf_rows_;
  Shares shares_;
  bool splits_;
  std::array<std::size_t, area_count> bytes_{};
};

class UnitMemory {  // the areas of one unit for one call
 public:
  struct Place {
    device::Arena* arena = nullptr;
    std::size_t offset = 0;
  };
  UnitMemory() = default;
  explicit UnitMemory(const std::array<Place, area_count>& places) : places_(places) {}
  /// [rows, width] of a slot; `rows` may be fewer than planned.
  Tensor view(const Slot& slot, std::int64_t rows) const {
    TRIREME_ASSERT(rows <= slot.rows, "{} rows in a slot of {}", rows, slot.rows);
    const Place& place = places_[static_cast<std::size_t>(slot.area)];
    return place.arena->view(slot.type, {rows, slot.width}, place.offset + slot.offset);
  }
  std::vector<Tensor> views(const std::vector<Slot>& slots, std::int64_t rows) const {
    std::vector<Tensor> result;
    result.reserve(slots.size());
    for (const Slot& slot : slots) result.push_back(view(slot, rows));
    return result;
  }

 private:
  std::array<Place, area_count> places_;
};

/// The tokens of one call. Where sequences are cut (ContextPart) a "sequence" of T tokens is one
/// pair of chunks.
struct Microbatch {
  std::int64_t sequences = 0;  // B
  std::int64_t length = 0;     // T
  Tensor inputs;               // i32 [R]
  Tensor targets;              // i32 [R]
  Tensor weights;              // [R]
  Tensor positions;            // i32 [B, T]
  Tensor documents;            // i32 [B, T], absent: one document
  /// As positions and documents, of all tokens of the sequences that were cut; else absent.
  Tensor key_positions, key_documents;
  Tensor samples;  // i64 [B], sample numbers
  Tensor rows;     // i64 [R], sample·T + t: the logical index of a token, for dropout
  /// There are no documents and positions are 0, 1, … T − 1 in every sequence
  /// (AttentionMask::plain).
  bool plain = false;
  std::int64_t tokens() const { return sequences * length; }
};

/// Keys and values of earlier tokens, for generation; one per block.
struct KeyValueCache {
  std::vector<Tensor> keys;    // per local tile [capacity, Gv·D]
  std::vector<Tensor> values;  // per local tile [capacity, Gv·D]
  Tensor positions;            // i32 [1, capacity], 0, 1, 2, …
  std::int64_t length = 0;
};

enum class Mode : std::uint8_t { train, evaluate };

/// Views of parameters or of gradients by row of the table: one per local tile of a split row. For
/// gradients of a row that is not split see gradient_copies.
class ParameterViews {
 public:
  ParameterViews() = default;
  explicit ParameterViews(std::size_t rows) : views_(rows) {}
  std::vector<Tensor>& of(int row) { return views_[static_cast<std::size_t>(row)]; }
  const Tensor& operator()(int row, int index = 0) const {
    return views_[static_cast<std::size_t>(row)][static_cast<std::size_t>(index)];
  }

 private:
  std::vector<std::vector<Tensor>> views_;
};

struct TensorGroup {
  comm::Communicator& group;
  comm::Communicator& kv;  // ranks among which a key/value head may be shared
  device::Stream& stream;
  comm::Progress* progress = nullptr;        // advances the stream while the rank computes
  device::GraphSequence* capture = nullptr;  // takes the group's operations, where computation is
                                             // captured
  comm::Communicator* context = nullptr;     // ranks that have the other parts of the sequences
};

/// What a leaf adds to.
struct LeafSums {
  const ParameterViews* gradients = nullptr;  // null when not training
  /// Gradients of weights hold no sum yet, and anything else: the unit's first product for each
  /// writes it, and does not add to it.
  bool writes_gradients = false;
  Tensor loss;  // f64 [1], to which the head adds Σ weight·nll of the leaf
};

/// Arguments of every call of a unit.
struct UnitContext {
  ops::Ops& ops;
  const Microbatch& batch;
  const Shares& shares;
  const TensorGroup& tensor;
  const ParameterViews& values;
  /// One or more, of equal numbers of rows in this order; those that add to the same gradients are
  /// neighbors. More than one only where all rows are the rank's.
  std::vector<LeafSums> leaves;
  /// The leaves are all that add to their gradients, which are a power of two: those of weights of
  /// linear layers (adds_up_leaves) are added up at once into the first leaf's.
  bool whole_sums = false;
  UnitMemory memory;  // the unit's, for this call
  Mode mode = Mode::train;
  std::uint64_t seed = 0;  // of dropout
  /// f32 [1], multiplies all gradients: the loss scale, against underflow in fp16, over the
  /// weighted target tokens of the global batch. In memory because it changes from step to step.
  Tensor gradient_factor;
  Tensor frequencies;              // [D/2] of rotary positions, absent for learned ones
  KeyValueCache* cache = nullptr;  // generation (block)

  std::int64_t leaf_rows() const { return batch.tokens() / std::ssize(leaves); }  // tokens
  /// The rows of leaf number `leaf` of `full` [R, …].
  Tensor of_leaf(const Tensor& full, std::size_t leaf) const {
    const std::int64_t rows = leaf_rows(), first = static_cast<std::int64_t>(leaf) * rows;
    return full.slice(0, first, first + rows);
  }
  params::Range rows() const { return shares.rows(batch.tokens()); }  // the rank's
  /// The rank's rows [r, …] of `full` [R, …].
  Tensor local(const Tensor& full) const {
    const params::Range own = rows();
    return full.slice(0, own.begin, own.end);
  }
  Tensor local(const Slot& slot) const { return memory.view(slot, rows().size()); }  // [r, width]
  Tensor full(const Slot& slot) const { return memory.view(slot, batch.tokens()); }  // [R, width]
  std::vector<Tensor> full(const std::vector<Slot>& slots) const {
    return memory.views(slots, batch.tokens());
  }
};

/// Backward as one call, or as two: for the input, then for the weights.
enum class BackwardPart : std::uint8_t { all, input, weight };
constexpr bool has_input(BackwardPart part) { return part != BackwardPart::weight; }
constexpr bool has_weight(BackwardPart part) { return part != BackwardPart::input; }

/// Arguments of a unit's calls: x [r, C] in (absent for the embedding), y [r, C] out (absent for
/// the head).
struct ForwardCall {
  UnitContext context;
  Tensor y, x;
};
/// dx [r, C] out (absent for the embedding), dy [r, C] in (absent for the head), x as in forward.
struct BackwardCall {
  UnitContext context;
  Tensor dx, dy, x;
};

class Unit : public Interface {
 public:
  virtual std::string name() const = 0;
  /// Requests its slots; called before any other call.
  virtual void plan(UnitPlan& plan) = 0;
  virtual void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const = 0;
  /// Recomputes what the plan put into Area::rebuilt, with the bits of forward. Precedes backward.
  virtual void recompute(const UnitContext& /*context*/, const Tensor& /*x*/) const {}
  /// Writes dx, and adds to the gradients of the unit's parameters.
  virtual void backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                        const Tensor& dy, const Tensor& x) const = 0;
  /// The same for this rank's pairs of chunks of the same sequences (ContextPart), which a unit may
  /// let exchange what it computes. Scratch and rebuilt values of each have memory of their own.
  virtual void forward_pairs(std::span<const ForwardCall> calls) const {
    for (const ForwardCall& call : calls) forward(call.context, call.y, call.x);
  }
  virtual void recompute_pairs(std::span<const BackwardCall> calls) const {
    for (const BackwardCall& call : calls) recompute(call.context, call.x);
  }
  virtual void backward_pairs(std::span<const BackwardCall> calls, BackwardPart part) const {
    for (const BackwardCall& call : calls) {
      backward(call.context, part, call.dx, call.dy, call.x);
    }
  }
};

}  // namespace trireme::model
