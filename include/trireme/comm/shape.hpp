// Arithmetic of the process grid: degrees, coordinates, and who is in which group. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// Fastest first: the order in which world ranks fill the grid, so that tensor groups lie inside a
/// node.
enum class Axis : std::uint8_t { tensor, context, data, pipeline, count };
constexpr int axis_count = static_cast<int>(Axis::count);
std::string_view name_of(Axis axis);

/// A set of axes.
class Axes {
 public:
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1U << static_cast<unsigned>(axis);
  }
  constexpr Axes operator|(Axes other) const {
    other.bits_ |= bits_;
    return other;
  }
  constexpr bool has(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1U) != 0; }

 private:
  unsigned bits_ = 0;
};

/// Degree of each axis, and coordinates.
struct GridShape {
  std::array<int, axis_count> degree{1, 1, 1, 1};  // by Axis
  int of(Axis axis) const { return degree[static_cast<std::size_t>(axis)]; }
  int size() const;
  std::array<int, axis_count> coordinates(int rank) const;
  int rank(const std::array<int, axis_count>& coordinates) const;
  std::string to_string() const;  // "pipeline 1 × data 2 × context 1 × tensor 1"
};

/// What a configuration asks for.
struct Degrees {
  std::int64_t tensor = 1, pipeline = 1;
  std::int64_t data = 0;  // 0: the rest of the world
};

/// The shape of a world of `world` ranks. Throws ConfigError that names parallel.tensor,
/// parallel.pipeline or parallel.data, the rule, and the nearest layouts that work.
GridShape make_grid_shape(int world, const Degrees& degrees);

/// Data ranks of a shard group, as asked for by `group`: 0 is the whole data axis. Throws
/// ConfigError that names zero.group where `group` does not divide the data degree.
int shard_degree(const GridShape& shape, std::int64_t group);

/// The groups of which every rank has one; see Grid.
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
  count
};
constexpr int group_kinds = static_cast<int>(GroupKind::count);
std::string_view name_of(GroupKind kind);

/// World ranks of the group over `axes` that `rank` is in: all whose other coordinates are equal,
/// in the order of world ranks.
std::vector<int> members(const GridShape& shape, Axes axes, int rank);
/// The same for a kind of group; `shard` as from shard_degree.
std::vector<int> members(const GridShape& shape, GroupKind kind, int shard, int rank);

}  // namespace trireme::comm
