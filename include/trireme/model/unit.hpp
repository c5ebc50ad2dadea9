// A stage is a list of units: embedding, blocks, head with loss. Each computes forward, backward
// for its inputs, and backward for its weights, over the vocabulary of ops.hpp. Shapes: R = B·T
// tokens (rows) of a micro-batch, C channels, H heads, G key/value heads, D head size, F MLP width,
// V vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/tensor.hpp"
#include "trireme/model/memory.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::model {

/// One micro-batch as units see it.
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
  std::int64_t tokens() const { return sequences * length; }
};

/// Keys and values of tokens already seen, for generation; one per block.
struct KeyValueCache {
  Tensor keys;       // [capacity, G·D]
  Tensor values;     // [capacity, G·D]
  Tensor positions;  // i32 [1, capacity], 0, 1, 2, …
  std::int64_t length = 0;
};

enum class Mode : std::uint8_t { train, evaluate };

/// What a unit is given for one call.
struct UnitContext {
  ops::Ops& ops;
  const Microbatch& batch;
  const std::vector<Tensor>& values;     // by row of the parameter table
  const std::vector<Tensor>& gradients;  // by row; empty when not training
  Mode mode = Mode::train;
  std::uint64_t seed = 0;          // of dropout
  double denominator = 1;          // weighted target tokens in the global batch
  double* loss = nullptr;          // receives Σ weight·nll of the micro-batch (head)
  KeyValueCache* cache = nullptr;  // generation (block)
};

class Unit {
 public:
  Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  virtual ~Unit() = default;
  virtual std::string name() const = 0;
  /// Asks for its slots. Called once, before any other call.
  virtual void plan(UnitPlan& plan) = 0;
  /// x [R, C] in (absent for the embedding), y [R, C] out (absent for the head).
  virtual void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                       const UnitMemory& memory) const = 0;
  /// dx [R, C] out (absent for the embedding) from dy [R, C] (absent for the head). x as in
  /// forward.
  virtual void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                              const Tensor& x, const UnitMemory& memory) const = 0;
  /// Adds to the gradients of the unit's parameters. dy and x as before, after backward_input.
  virtual void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                               const UnitMemory& memory) const = 0;
};

}  // namespace trireme::model
