// Where a unit's intermediate values lie. A unit asks for slots when it is planned; the stage gives
// each of its areas a place in an arena; so activation memory is known before training.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::model {

/// How long a value lives.
enum class Area : std::uint8_t {
  stash,    // from forward until the last backward of the same micro-batch
  rebuilt,  // from recomputation (or forward) until the unit's last backward
  delta,    // from backward for inputs until backward for weights, where these are two calls
  scratch,  // within one call
  count
};
constexpr std::size_t area_count = static_cast<std::size_t>(Area::count);

/// What backward makes again instead of keeping it. Korthikanti et al., "Reducing activation
/// recomputation in large transformer models" (2022).
/// Each policy makes again what those before it do.
enum class Recompute : std::uint8_t {
  none,
  cheap,      // what one pass over kept values gives: norms, activation functions
  selective,  // attention too
  full        // everything but each unit's input
};

/// What it costs to make a value again, which decides under which policies it is not kept.
enum class Remake : std::uint8_t {
  never,  // kept under every policy
  dear,   // made again under `full`
  fair,   // made again under `selective` and `full`
  cheap   // made again under all but `none`
};

/// A value of `width` elements for each of `rows` rows at most.
struct Slot {
  Area area = Area::scratch;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::size_t offset = 0;  // bytes from the beginning of the unit's area
};

/// How a rank's share of the work is cut, as far as memory depends on it.
struct Shares {
  params::Tiles tiles;             // of split parameters
  bool sequence_parallel = false;  // norms, dropout and residuals on the rank's rows only
  bool reproducible = false;
  Recompute recompute = Recompute::none;
  /// The GELU that a product leaves has the bits of a pass over what the product kept, so that such
  /// a pass makes it again.
  bool exact_gelu = true;
  /// Of activations and of what products read; parameters are fp32, or narrower copies of fp32
  /// masters, or such masters themselves (see state::StateOptions::reads_masters).
  DType compute = DType::f32;

  bool narrow() const { return compute != DType::f32; }
  /// Of summands that lie apart: rounded once, after the sum, in reproducible mode.
  DType partial() const { return reproducible ? DType::f32 : compute; }
  /// The rank's rows of a leaf of `rows` tokens outside the tensor-parallel regions.
  params::Range rows(std::int64_t all) const {
    return sequence_parallel ? tiles.of(all) : params::Range{0, all};
  }
};

/// Collects the slots of one unit for leaves of `rows` tokens; of the compute type where no other
/// is named. `splits`: backward for inputs and for weights are two calls, between which other units
/// and micro-batches have theirs.
class UnitPlan {
 public:
  UnitPlan(std::int64_t rows, const Shares& shares, bool splits)
      : rows_(rows), shares_(shares), splits_(splits) {}
  std::int64_t rows() const { return rows_; }
  std::int64_t local_rows() const { return shares_.rows(rows_).size(); }
  const Shares& shares() const { return shares_; }

  Slot add(Area area, std::int64_t rows, std::int64_t width) {
    return add(area, rows, width, shares_.compute);
  }
  Slot add(Area area, std::int64_t rows, std::int64_t width, DType type) {
    std::size_t& end = bytes_[static_cast<std::size_t>(area)];
    const Slot slot{area, type, rows, width, end};
    end += device::aligned(static_cast<std::size_t>(rows * width) * size_of(type));
    return slot;
  }
  /// Of gradients that backward for weights needs after backward for inputs has made them.
  Area between() const { return splits_ ? Area::delta : Area::scratch; }
  /// Alternatives of which one at a time is in use: the scratch that each call of `plans` adds may
  /// be the same memory. What is added afterwards lies behind the largest.
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
  /// A value that backward needs: kept from forward, or made again; what is cheap to make, into
  /// scratch where it is read.
  Slot keep(Remake remake, std::int64_t rows, std::int64_t width) {
    return keep(remake, rows, width, shares_.compute);
  }
  Slot keep(Remake remake, std::int64_t rows, std::int64_t width, DType type) {
    return add(area_of(remake), rows, width, type);
  }
  /// One slot per local tile, widths[i] elements wide.
  std::vector<Slot> add_tiles(Area area, std::int64_t rows, const std::vector<std::int64_t>& widths,
                              DType type);
  std::vector<Slot> add_tiles(Area area, std::int64_t rows,
                              const std::vector<std::int64_t>& widths) {
    return add_tiles(area, rows, widths, shares_.compute);
  }
  std::vector<Slot> keep_tiles(Remake remake, std::int64_t rows,
                               const std::vector<std::int64_t>& widths, DType type);
  std::vector<Slot> keep_tiles(Remake remake, std::int64_t rows,
                               const std::vector<std::int64_t>& widths) {
    return keep_tiles(remake, rows, widths, shares_.compute);
  }
  std::size_t bytes(Area area) const { return bytes_[static_cast<std::size_t>(area)]; }

 private:
  Area area_of(Remake remake) const {
    const Recompute policy = shares_.recompute;
    switch (remake) {
      case Remake::never:
        return Area::stash;
      case Remake::dear:
        return policy >= Recompute::full ? Area::rebuilt : Area::stash;
      case Remake::fair:
        return policy >= Recompute::selective ? Area::rebuilt : Area::stash;
      case Remake::cheap:
        return policy >= Recompute::cheap ? Area::scratch : Area::stash;
    }
    return Area::stash;
  }

  std::int64_t rows_;
  Shares shares_;
  bool splits_;
  std::array<std::size_t, area_count> bytes_{};
};

/// The areas of one unit for one leaf.
class UnitMemory {
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

}  // namespace trireme::model
