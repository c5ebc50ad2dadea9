// Where a unit's intermediate values lie. A unit asks for slots when it is planned; the stage gives
// each of its areas a place in an arena; so activation memory is known before training.
#pragma once

#include <array>
#include <cstdint>

#include "trireme/device/arena.hpp"

namespace trireme::model {

/// How long a value lives.
enum class Area : std::uint8_t {
  stash,    // from forward until the last backward of the same micro-batch
  delta,    // from backward for inputs until backward for weights
  scratch,  // within one call
  count
};
constexpr std::size_t area_count = static_cast<std::size_t>(Area::count);

/// A value of `width` elements for each of `rows` rows at most.
struct Slot {
  Area area = Area::scratch;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::size_t offset = 0;  // bytes from the beginning of the unit's area
};

/// Collects the slots of one unit for micro-batches of at most `rows` tokens.
class UnitPlan {
 public:
  explicit UnitPlan(std::int64_t rows) : rows_(rows) {}
  std::int64_t rows() const { return rows_; }
  /// One value per token unless `rows` says otherwise.
  Slot add(Area area, std::int64_t width, DType type = DType::f32, std::int64_t rows = -1) {
    if (rows < 0) rows = rows_;
    std::size_t& end = bytes_[static_cast<std::size_t>(area)];
    const Slot slot{area, type, rows, width, end};
    end += device::aligned(static_cast<std::size_t>(rows * width) * size_of(type));
    return slot;
  }
  std::size_t bytes(Area area) const { return bytes_[static_cast<std::size_t>(area)]; }

 private:
  std::int64_t rows_;
  std::array<std::size_t, area_count> bytes_{};
};

/// The areas of one unit for one micro-batch.
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

 private:
  std::array<Place, area_count> places_;
};

}  // namespace trireme::model
