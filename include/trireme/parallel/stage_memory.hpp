// Activation memory of one stage: every buffer that its program needs, at offsets known before
// training.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/lowering.hpp"

namespace trireme::parallel {

/// Part of what a stash slot of a chunk holds for one unit.
struct StashPart {
  int chunk = 0, slot = 0, unit = 0;
  std::size_t bytes = 0;  // a multiple of device::alignment
};

struct Aliases {
  std::vector<std::int64_t> places;  // by part: byte of the flat gradients, −1: none
  std::vector<bool> aliased;         // by group of the layout: some part aliases its gradient
};

/// Activation aliasing: gradients are not in use from one update until backward adds to them again.
/// Activations may use their memory meanwhile, where the program reads them for the last time
/// before it first adds to the gradient. Places as many of `parts` as fit into the flat fp32
/// gradients of `layout`, last units' first. An aliased gradient must be zeroed just before it is
/// first added to, or written. `last_unit` of the model adds to its gradients in forward.
Aliases plan_aliases(const Program& program, const params::Layout& layout, int last_unit,
                     const std::vector<StashPart>& parts);

/// A micro-batch is `count` leaves of `rows` tokens each: one, or in reproducible mode one for each
/// sequence. A call of a unit computes `at_once` neighbors, which divides `count`.
struct Leaves {
  std::int64_t rows = 0;
  int count = 1;
  int at_once = 1;
  std::int64_t call_rows() const { return rows * at_once; }
  int calls() const { return count / at_once; }
};

/// Offsets of a stage's activations in two arenas: *stash*, what lives from forward to backward,
/// and *work*, everything else. Part of the stash may alias the gradients.
class StagePlan {
 public:
  /// Plans the units of `chunks`, which then know their slots. `gradients`: the layout of flat
  /// gradients that part of the stash may alias; null: none.
  StagePlan(const model::Transformer& model, const std::vector<params::Range>& chunks,
            const model::Shares& shares, const Leaves& leaves, const Program& program,
            const params::Layout* gradients);

  /// Without what aliases gradients.
  std::size_t stash_bytes() const { return stash_bytes_; }
  /// By group of the layout: activations alias its gradient, which must be zeroed only when it is
  /// first added to. Empty: none do.
  const std::vector<bool>& aliased() const { return aliased_; }
  std::size_t work_bytes() const { return work_bytes_; }
  const Leaves& leaves() const { return leaves_; }
  std::int64_t own_rows() const { return own_rows_; }  // of a call
  std::int64_t width() const { return width_; }

 private:
  friend class StageMemory;
  struct UnitSizes {
    std::size_t stash = 0, rebuilt = 0, delta = 0, scratch = 0;  // of one call
    std::size_t pending_offset = 0;                              // within a pending slot, of call 0
  };
  struct Place {
    bool aliases = false;  // the gradients; else in the stash arena
    std::size_t offset = 0;
  };
  /// What a stash slot holds of one unit: its input, and what it keeps for backward of each call.
  struct Kept {
    Place input, stash;
  };
  struct Chunk {
    params::Range units;
    std::vector<UnitSizes> sizes;
    std::vector<Kept> kept;                            // slot by slot, unit by unit
    std::size_t pending_begin = 0, pending_bytes = 0;  // in the work arena
    int pending_slots = 0;
  };
  std::size_t activation_bytes() const;  // [calls · own rows, C]
  void place_stash(const Program& program, const params::Layout* gradients, int last_unit);
  Leaves leaves_;
  std::int64_t own_rows_ = 0, width_ = 0;
  DType type_ = DType::f32;
  std::vector<Chunk> chunks_;
  std::vector<bool> aliased_;
  std::size_t stash_bytes_ = 0, work_bytes_ = 0;
  /// In the work arena, one for each pair of chunks that is computed together.
  struct Each {
    std::size_t begin = 0, bytes = 0;
    std::size_t of(std::size_t pair) const { return begin + pair * bytes; }
  };
  int pairs_ = 1;
  Each rebuilt_, delta_, scratch_;
  std::size_t passing_ = 0;
  std::size_t receive_activation_ = 0, receive_gradient_ = 0;
  std::size_t send_activation_ = 0, send_gradient_ = 0;
};

/// The arenas themselves and the views that a program's actions need.
class StageMemory {
 public:
  /// `gradients`: the flat ones that the plan's stash may alias.
  StageMemory(const StagePlan& plan, const Tensor& gradients, device::MemoryLedger& ledger);
  const StagePlan& plan() const { return plan_; }
  enum class Message : std::uint8_t {
    receive_activation,
    receive_gradient,
    send_activation,
    send_gradient
  };
  /// [calls · own rows, C]
  Tensor message(Message kind, int slot);
  /// The input of an action's unit, [calls · own rows, C].
  Tensor input(const UnitAction& action);
  /// The input of the unit after the action's, in the same chunk.
  Tensor next_input(const UnitAction& action);
  /// The gradient for the output of the action's unit, and for its input, where they pass from unit
  /// to unit inside a chunk.
  Tensor output_gradient(const UnitAction& action);
  Tensor input_gradient(const UnitAction& action);
  model::UnitMemory unit(const UnitAction& action, int call);

  std::size_t stash_high_water() const { return stash_.high_water(); }
  std::size_t work_high_water() const { return work_.high_water(); }

 private:
  Tensor activation(device::Arena& arena, std::size_t offset);
  device::Arena& arena(const StagePlan::Place& place) {
    return place.aliases ? gradients_ : stash_;
  }
  const StagePlan::Kept& kept(const UnitAction& action) const;
  const StagePlan::Chunk& chunk(const UnitAction& action) const;
  const StagePlan::UnitSizes& sizes(const UnitAction& action) const;
  Tensor passing(const UnitAction& action, int unit);
  StagePlan plan_;
  device::Arena stash_, gradients_, work_;
};

}  // namespace trireme::parallel
