// The process grid: which rank stands where on which axis, and the groups along each axis.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {

/// Fastest first: the order in which world ranks fill the grid, so that tensor groups lie inside a
/// node.
enum class Axis : std::uint8_t { tensor, context, data, pipeline, count };
constexpr int axis_count = static_cast<int>(Axis::count);
std::string_view name_of(Axis axis);

/// Degree of each axis; pure arithmetic on coordinates.
struct GridShape {
  std::array<int, axis_count> degree{1, 1, 1, 1};  // by Axis
  int size() const;
  std::array<int, axis_count> coordinates(int rank) const;
  int rank(const std::array<int, axis_count>& coordinates) const;
  std::string to_string() const;  // "pipeline 1 × data 2 × context 1 × tensor 1"
};

/// The shape of a world of `world` ranks whose data degree is `data` (0: the rest of the world).
/// Throws ConfigError with the nearest degrees that work.
GridShape make_grid_shape(int world, int data);

/// Groups along every axis and over the world, made by MPI_Comm_split at start; collective.
class Grid {
 public:
  Grid(const Session& session, const GridShape& shape, device::MemoryLedger& ledger);
  const GridShape& shape() const { return shape_; }
  int coordinate(Axis axis) const { return coordinates_[static_cast<int>(axis)]; }
  Communicator& group(Axis axis) { return *groups_[static_cast<int>(axis)]; }
  Communicator& world() { return *world_; }
  /// "rank 3 of 4: pipeline 0, data 3, context 0, tensor 0 on node01".
  std::string to_string() const;

 private:
  GridShape shape_;
  std::array<int, axis_count> coordinates_{};
  std::array<std::unique_ptr<Communicator>, axis_count> groups_;
  std::unique_ptr<Communicator> world_;
  std::string where_;
};

}  // namespace trireme::comm
