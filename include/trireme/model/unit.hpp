// A stage is a list of units: embedding, blocks, head with loss. A unit computes forward and
// backward with the operations of ops.hpp on one *leaf*: a micro-batch, or in reproducible mode one
// of its sequences. Shapes: R = B·T tokens (rows) of a leaf, r the rank's rows (R without sequence
// parallelism), C channels, H heads, G key/value heads, D head size, F MLP width, V vocabulary; a
// suffix v marks one tile of a split dimension.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/model/memory.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::model {

/// One leaf's tokens.
struct Microbatch {
  std::int64_t sequences = 0;  // B
  std::int64_t length = 0;     // T
  Tensor inputs;               // i32 [R]
  Tensor targets;              // i32 [R]
  Tensor weights;              // [R]
  Tensor positions;            // i32 [B, T]
  Tensor documents;            // i32 [B, T], absent: one document
  Tensor samples;              // i64 [B], sample numbers
  Tensor rows;                 // i64 [R], sample·T + t: the logical index of a token, for dropout
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
  device::Stream& stream;
};

/// Arguments of every call of a unit.
struct UnitContext {
  ops::Ops& ops;
  const Microbatch& batch;
  const Shares& shares;
  const TensorGroup& tensor;
  const ParameterViews& values;
  const ParameterViews& gradients;  // empty when not training
  UnitMemory memory;                // the unit's, for this leaf
  Mode mode = Mode::train;
  std::uint64_t seed = 0;  // of dropout
  /// f32 [1], multiplies all gradients: the loss scale, against underflow in fp16, over the
  /// weighted target tokens of the global batch. In memory because it changes from step to step.
  Tensor gradient_factor;
  Tensor frequencies;              // [D/2] of rotary positions, absent for learned ones
  Tensor loss;                     // f64 [1], to which the head adds Σ weight·nll of the leaf
  KeyValueCache* cache = nullptr;  // generation (block)

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

class Unit {
 public:
  Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  virtual ~Unit() = default;
  virtual std::string name() const = 0;
  /// Requests its slots; called before any other call.
  virtual void plan(UnitPlan& plan) = 0;
  /// x [r, C] in (absent for the embedding), y [r, C] out (absent for the head).
  virtual void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const = 0;
  /// Recomputes what the plan put into Area::rebuilt, with the bits of forward. Precedes backward.
  virtual void recompute(const UnitContext& /*context*/, const Tensor& /*x*/) const {}
  /// Writes dx [r, C] (absent for the embedding) from dy [r, C] (absent for the head), and adds to
  /// the gradients of the unit's parameters. x as in forward.
  virtual void backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                        const Tensor& dy, const Tensor& x) const = 0;
};

}  // namespace trireme::model
