// Arithmetic of the process grid: degrees, coordinates, who is in which group, and what the
// placement of ranks on nodes means for it. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"

namespace trireme::comm {

/// Fastest first: the order in which world ranks fill the grid, so that tensor groups are inside a
/// node.
enum class Axis : std::uint8_t { tensor, context, data, pipeline, count };
constexpr int axis_count = static_cast<int>(Axis::count);
std::string_view name_of(Axis axis);
/// Axes whose degree a configuration sets, in the order in which texts name them.
inline constexpr std::array settable_axes = {Axis::tensor, Axis::context, Axis::pipeline,
                                             Axis::data};

/// Degree of each axis and of the groups inside an axis, and coordinates.
struct GridShape {
  std::array<int, axis_count> degree{1, 1, 1, 1};  // by Axis
  /// Ranks of a shard group, a divisor of copies() (shard_degree checks what users ask for), and
  /// tensor ranks of a key/value group, a divisor of the tensor degree; 0: all of them.
  int shard = 0, kv = 0;
  int of(Axis axis) const { return degree[static_cast<std::size_t>(axis)]; }
  /// Ranks that have the same parameters, and sum their gradients: data × context.
  int copies() const { return of(Axis::data) * of(Axis::context); }
  int shard_size() const { return shard == 0 ? copies() : shard; }
  int kv_size() const { return kv == 0 ? of(Axis::tensor) : kv; }
  int size() const;
  std::array<int, axis_count> coordinates(int rank) const;
  int rank(const std::array<int, axis_count>& coordinates) const;
  /// "tensor 1 × pipeline 1 × data 2"; the context axis where it has several ranks.
  std::string to_string() const;
};

/// What a configuration asks for.
struct Degrees {
  std::int64_t tensor = 1, context = 1, pipeline = 1;
  std::int64_t data = 0;  // 0: the rest of the world
};

/// The shape of a world of `world` ranks. Throws ConfigError that names parallel.tensor,
/// parallel.context, parallel.pipeline or parallel.data, the rule, and the nearest layouts that
/// work.
GridShape make_grid_shape(int world, const Degrees& degrees);

/// Ranks of a shard group, as asked for by `group`: 0 is all copies. Throws ConfigError that names
/// zero.group where `group` does not divide their number.
int shard_degree(const GridShape& shape, std::int64_t group);

/// The groups of which every rank has one: along an axis (data: along the context axis too, which
/// is inner: all copies of the parameters); everyone; those of one pipeline stage; one replica of
/// the model (pipeline × context × tensor); shard_size() consecutive ranks of the data group, and
/// the ranks of equal place in these; first and last stage; kv_size() consecutive tensor ranks.
enum class GroupKind : std::uint8_t {
  tensor,
  context,
  data,
  pipeline,
  world,
  stage,
  model,
  shard,
  replica,
  embedding,
  kv,
  count
};
constexpr int group_kinds = static_cast<int>(GroupKind::count);
std::string_view name_of(GroupKind kind);

/// Every kind once, in the order in which all ranks make their groups.
constexpr std::array<GroupKind, group_kinds> all_group_kinds = [] {
  std::array<GroupKind, group_kinds> kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<GroupKind>(i);
  return kinds;
}();

/// The kind of the groups along `axis`.
constexpr GroupKind group_along(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return GroupKind::tensor;
    case Axis::context:
      return GroupKind::context;
    case Axis::data:
      return GroupKind::data;
    case Axis::pipeline:
      return GroupKind::pipeline;
    case Axis::count:
      break;
  }
  no_case_for(axis);
}
static_assert([] {  // of every axis: no_case_for is no constant expression
  for (int axis = 0; axis < axis_count; ++axis) group_along(static_cast<Axis>(axis));
  return true;
}());

/// One value for each kind of group.
template <class Value>
struct ByKind {
  std::array<Value, group_kinds> values{};
  Value& operator[](GroupKind kind) { return values[static_cast<std::size_t>(kind)]; }
  const Value& operator[](GroupKind kind) const { return values[static_cast<std::size_t>(kind)]; }
};

/// World ranks of the group of `kind` that `rank` is in, in ascending order.
std::vector<int> members(const GridShape& shape, GroupKind kind, int rank);
/// Their number.
int group_size(const GridShape& shape, GroupKind kind, int rank);

/// Kinds by the division of the world that they share, so that one MPI communicator serves them
/// all; without kinds whose groups have one rank each.
std::vector<std::vector<GroupKind>> shared_divisions(const GridShape& shape);

/// One line for each thing about the placement that costs speed, with its remedy. `node_of`: by
/// world rank, equal numbers for ranks that share memory.
std::vector<std::string> topology_warnings(const GridShape& shape, std::span<const int> node_of);

/// The largest divisor N of the number of copies such that every shard group of N (see
/// Grid::shard_group) is inside one node; 1 where none larger does.
int shard_inside_node(const GridShape& shape, std::span<const int> node_of);

}  // namespace trireme::comm
