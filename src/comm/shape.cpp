// Long because degrees, groups and warnings share the arithmetic of one grid.
#include "trireme/comm/shape.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::comm {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, axis_count> names = {"tensor", "context", "data",
                                                              "pipeline"};
  static_assert(!names.back().empty());
  return names.at(static_cast<std::size_t>(axis));
}

std::string_view name_of(GroupKind kind) {
  constexpr std::array<std::string_view, group_kinds> names = {
      "tensor", "context", "data",    "pipeline",  "world", "stage",
      "model",  "shard",   "replica", "embedding", "kv"};
  static_assert(!names.back().empty());
  return names.at(static_cast<std::size_t>(kind));
}

int GridShape::size() const {
  return std::accumulate(degree.begin(), degree.end(), 1, std::multiplies<>());
}

std::array<int, axis_count> GridShape::coordinates(int rank) const {
  TRIREME_ASSERT(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
  std::array<int, axis_count> result{};
  for (int axis = 0; axis < axis_count; ++axis) {
    result[axis] = rank % degree[axis];
    rank /= degree[axis];
  }
  return result;
}

int GridShape::rank(const std::array<int, axis_count>& coordinates) const {
  int result = 0;
  for (int axis = axis_count - 1; axis >= 0; --axis) {
    TRIREME_ASSERT(coordinates[axis] >= 0 && coordinates[axis] < degree[axis],
                   "coordinate {} of {} on axis {}", coordinates[axis], degree[axis], axis);
    result = result * degree[axis] + coordinates[axis];
  }
  return result;
}

std::string GridShape::to_string() const {
  std::string text;
  for (const Axis axis : settable_axes) {
    if (axis == Axis::context && of(axis) == 1) continue;
    if (!text.empty()) text += " × ";
    text += fmt::format("{} {}", name_of(axis), of(axis));
  }
  return text;
}

namespace {

/// World ranks whose coordinates on all axes but `axes` are those of `rank`, in ascending order.
std::vector<int> ranks_along(const GridShape& shape, std::initializer_list<Axis> axes, int rank) {
  std::array<int, axis_count> first = shape.coordinates(rank);
  std::array<bool, axis_count> along{};
  for (const Axis axis : axes) {
    along[static_cast<std::size_t>(axis)] = true;
    first[static_cast<std::size_t>(axis)] = 0;
  }
  // The fastest axis is innermost, so the ranks come out in order.
  std::vector<int> result = {shape.rank(first)};
  int stride = 1;
  for (int axis = 0; axis < axis_count; stride *= shape.degree[axis++]) {
    if (!along[axis]) continue;
    const std::size_t inner = result.size();
    for (int i = 1; i < shape.degree[axis]; ++i) {
      for (std::size_t j = 0; j < inner; ++j) result.push_back(result[j] + i * stride);
    }
  }
  return result;
}

}  // namespace

std::vector<int> members(const GridShape& shape, GroupKind kind, int rank) {
  using enum Axis;
  const auto along = [&](std::initializer_list<Axis> axes) {
    return ranks_along(shape, axes, rank);
  };
  const int own = rank / shape.of(tensor) % shape.copies();
  const int shard = shape.shard_size();
  // `count` copies, from number `first` on.
  const auto copies = [&](int first, int step, int count) {
    std::vector<int> result;
    for (int i = 0; i < count; ++i) {
      result.push_back(rank + (first + i * step - own) * shape.of(tensor));
    }
    return result;
  };
  switch (kind) {
    case GroupKind::tensor:
      return along({tensor});
    case GroupKind::context:
      return along({context});
    case GroupKind::data:
      return along({context, data});
    case GroupKind::pipeline:
      return along({pipeline});
    case GroupKind::world:
      return along({tensor, context, data, pipeline});
    case GroupKind::stage:
      return along({tensor, context, data});
    case GroupKind::model:
      return along({tensor, context, pipeline});
    case GroupKind::shard:
      return copies(own / shard * shard, 1, shard);
    case GroupKind::replica:
      return copies(own % shard, shard, shape.copies() / shard);
    case GroupKind::embedding: {
      std::vector<int> stages = along({pipeline});
      if (rank != stages.front() && rank != stages.back()) return {rank};
      if (stages.size() == 1) return stages;
      return {stages.front(), stages.back()};
    }
    case GroupKind::kv: {
      std::vector<int> result(static_cast<std::size_t>(shape.kv_size()));
      std::iota(result.begin(), result.end(), rank / shape.kv_size() * shape.kv_size());
      return result;
    }
    case GroupKind::count:
      break;
  }
  no_case_for(kind);
}

int group_size(const GridShape& shape, GroupKind kind, int rank) {
  using enum Axis;
  switch (kind) {
    case GroupKind::tensor:
      return shape.of(tensor);
    case GroupKind::context:
      return shape.of(context);
    case GroupKind::data:
      return shape.copies();
    case GroupKind::pipeline:
      return shape.of(pipeline);
    case GroupKind::world:
      return shape.size();
    case GroupKind::stage:
      return shape.size() / shape.of(pipeline);
    case GroupKind::model:
      return shape.size() / shape.of(data);
    case GroupKind::shard:
      return shape.shard_size();
    case GroupKind::replica:
      return shape.copies() / shape.shard_size();
    case GroupKind::embedding: {
      const int stages = shape.of(pipeline),
                own = shape.coordinates(rank)[static_cast<int>(pipeline)];
      return stages > 1 && (own == 0 || own + 1 == stages) ? 2 : 1;
    }
    case GroupKind::kv:
      return shape.kv_size();
    case GroupKind::count:
      break;
  }
  no_case_for(kind);
}

std::vector<std::vector<GroupKind>> shared_divisions(const GridShape& shape) {
  // Rank 0 has the smallest coordinate everywhere: where two kinds give it the same group, they
  // divide the world alike.
  std::map<std::vector<int>, std::size_t> found;  // by rank 0's group
  std::vector<std::vector<GroupKind>> divisions;
  for (const GroupKind kind : all_group_kinds) {
    std::vector<int> first = members(shape, kind, 0);
    if (first.size() == 1) continue;
    const auto [known, is_new] = found.emplace(std::move(first), divisions.size());
    if (is_new) divisions.emplace_back();
    divisions[known->second].push_back(kind);
  }
  return divisions;
}

namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> result, large;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    result.push_back(i);
    if (i * i != n) large.push_back(n / i);
  }
  result.insert(result.end(), large.rbegin(), large.rend());
  return result;
}

/// A full layout that fills the world, and how far it is from what was asked for.
struct Candidate {
  Degrees degrees;
  int others_changed = 0;  // given degrees beside the refused one
  double distance = 0;     // of all given degrees, in powers of two
};

enum class Key : std::uint8_t { tensor, context, pipeline, data };

std::int64_t of(const Degrees& degrees, Key key) {
  switch (key) {
    case Key::tensor:
      return degrees.tensor;
    case Key::context:
      return degrees.context;
    case Key::pipeline:
      return degrees.pipeline;
    case Key::data:
      return degrees.data;
  }
  no_case_for(key);
}

/// "tensor 2 × pipeline 1 × data ", and the context degree where one was asked for.
std::string product_of(const Degrees& degrees, bool context) {
  return fmt::format("tensor {} ×{} pipeline {} × data ", degrees.tensor,
                     context ? fmt::format(" context {} ×", degrees.context) : "",
                     degrees.pipeline);
}

/// Every layout that fills the world; without a context axis where none was asked for.
std::vector<Degrees> all_layouts(std::int64_t world, bool context) {
  std::vector<Degrees> all;
  for (const std::int64_t tensor : divisors(world)) {
    const std::int64_t left = world / tensor;
    for (const std::int64_t part : context ? divisors(left) : std::vector<std::int64_t>{1}) {
      for (const std::int64_t pipeline : divisors(left / part)) {
        all.push_back({tensor, part, pipeline, left / part / pipeline});
      }
    }
  }
  return all;
}

/// The best layout for each value of the refused degree, nearest value first.
std::vector<Candidate> nearest_layouts(std::int64_t world, const Degrees& asked, Key refused) {
  std::vector<Candidate> all;
  for (const Degrees& degrees : all_layouts(world, asked.context != 1)) {
    Candidate each{degrees};
    for (const Key key : {Key::tensor, Key::context, Key::pipeline, Key::data}) {
      if (key == Key::data && asked.data == 0) continue;
      const std::int64_t wanted = std::max<std::int64_t>(of(asked, key), 1);
      const std::int64_t got = of(each.degrees, key);
      if (key != refused && got != wanted) ++each.others_changed;
      each.distance += std::abs(std::log2(static_cast<double>(got) / static_cast<double>(wanted)));
    }
    all.push_back(each);
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.others_changed != b.others_changed ? a.others_changed < b.others_changed
                                                : a.distance < b.distance;
  });
  std::vector<Candidate> best;
  for (const Candidate& each : all) {
    if (each.others_changed > all.front().others_changed) break;
    const auto same = [&](const Candidate& other) {
      return of(other.degrees, refused) == of(each.degrees, refused);
    };
    if (std::none_of(best.begin(), best.end(), same)) best.push_back(each);
  }
  return best;
}

[[noreturn]] void refuse(std::int64_t world, const Degrees& asked, Key refused,
                         const std::string& rule) {
  constexpr std::array<std::string_view, 4> names = {"parallel.tensor", "parallel.context",
                                                     "parallel.pipeline", "parallel.data"};
  std::vector<Candidate> nearest = nearest_layouts(world, asked, refused);
  nearest.resize(std::min<std::size_t>(nearest.size(), 2));
  std::sort(nearest.begin(), nearest.end(), [&](const Candidate& a, const Candidate& b) {
    return of(a.degrees, refused) < of(b.degrees, refused);
  });
  std::string values;
  std::string layouts;
  for (const Candidate& each : nearest) {
    values += fmt::format("{}{}", values.empty() ? "" : " or ", of(each.degrees, refused));
    layouts += fmt::format("{}{}{}", layouts.empty() ? "" : ", ",
                           product_of(each.degrees, asked.context != 1), each.degrees.data);
  }
  if (refused == Key::data) values += ", or 0 for the rest of the world";
  throw ConfigError(std::string(names.at(static_cast<std::size_t>(refused))),
                    std::to_string(of(asked, refused)), rule,
                    fmt::format("use {}: {}", values, layouts));
}

}  // namespace

GridShape make_grid_shape(int world, const Degrees& degrees) {
  TRIREME_ASSERT(world >= 1, "a world of {} ranks", world);
  std::int64_t left = world;
  std::string taken;  // "tensor 2", "tensor 2 and context 2"
  for (const Key key : {Key::tensor, Key::context, Key::pipeline}) {
    constexpr std::array<std::string_view, 3> names = {"tensor", "context", "pipeline"};
    const std::int64_t degree = of(degrees, key);
    if (degree < 1 || left % degree != 0) {
      refuse(world, degrees, key,
             taken.empty()
                 ? fmt::format("must divide the number of ranks, {}", world)
                 : fmt::format("must divide the {} that {} ranks leave to {}", left, world, taken));
    }
    left /= degree;
    if (degree == 1) continue;
    taken += fmt::format("{}{} {}", taken.empty() ? "" : " and ",
                         names.at(static_cast<std::size_t>(key)), degree);
  }
  if (degrees.data != 0 && degrees.data != left) {
    refuse(world, degrees, Key::data,
           fmt::format("must be {}, as {}must be the number of ranks, {}", left,
                       product_of(degrees, degrees.context != 1), world));
  }
  GridShape shape;
  const auto set = [&](Axis axis, std::int64_t degree) {
    shape.degree[static_cast<std::size_t>(axis)] = static_cast<int>(degree);
  };
  set(Axis::tensor, degrees.tensor);
  set(Axis::context, degrees.context);
  set(Axis::pipeline, degrees.pipeline);
  set(Axis::data, left);
  return shape;
}

int shard_degree(const GridShape& shape, std::int64_t group) {
  const int copies = shape.copies();
  if (group == 0) return copies;
  if (group >= 1 && copies % group == 0) return static_cast<int>(group);
  std::string values;
  std::int64_t below = 1;
  for (const std::int64_t each : divisors(copies)) {
    if (each < group) below = each;
    if (each > group) {
      values = group < 1 ? std::to_string(each) : fmt::format("{} or {}", below, each);
      break;
    }
  }
  if (values.empty()) values = std::to_string(below);
  throw ConfigError("zero.group", std::to_string(group),
                    shape.of(Axis::context) == 1
                        ? fmt::format("must divide the data-parallel degree, {}", copies)
                        : fmt::format("must divide data × context, {}", copies),
                    fmt::format("use {}", values));
}

namespace {

/// Whether the ranks [begin, begin + count·stride) in steps of `stride` share a node.
bool together(std::span<const int> node_of, int begin, int count, int stride) {
  for (int i = 1; i < count; ++i) {
    if (node_of[begin + i * stride] != node_of[begin]) return false;
  }
  return true;
}

/// Ranks of a node follow each other: as many changes of node along the ranks as the nodes need.
bool consecutive(std::span<const int> node_of) {
  const std::set<int> nodes(node_of.begin(), node_of.end());
  std::size_t changes = 0;
  for (std::size_t rank = 1; rank < node_of.size(); ++rank) {
    if (node_of[rank] != node_of[rank - 1]) ++changes;
  }
  return changes + 1 == nodes.size();
}

/// The largest tensor degree below the given one that leaves the other axes but data as they are
/// and whose groups are inside nodes.
int largest_tensor(const GridShape& shape, std::span<const int> node_of) {
  const int ranks = shape.of(Axis::tensor) * shape.of(Axis::data);
  for (int tensor = shape.of(Axis::tensor) - 1; tensor > 1; --tensor) {
    if (ranks % tensor != 0) continue;
    int begin = 0;
    while (begin < shape.size() && together(node_of, begin, tensor, 1)) begin += tensor;
    if (begin == shape.size()) return tensor;
  }
  return 1;
}

}  // namespace

std::vector<std::string> topology_warnings(const GridShape& shape, std::span<const int> node_of) {
  TRIREME_ASSERT(static_cast<int>(node_of.size()) == shape.size(), "{} ranks on nodes, {} in {}",
                 node_of.size(), shape.size(), shape.to_string());
  const int tensor = shape.of(Axis::tensor);
  int spanning = 0;
  int first = -1;
  for (int begin = 0; begin < shape.size(); begin += tensor) {
    if (together(node_of, begin, tensor, 1)) continue;
    if (spanning++ == 0) first = begin;
  }
  if (spanning == 0) return {};
  // Blocks of ranks shrink to nothing where the launcher deals ranks out one by one.
  const std::string mend =
      consecutive(node_of) ? fmt::format("use parallel.tensor = {}, the largest that does not",
                                         largest_tensor(shape, node_of))
                           : std::string(
                                 "place consecutive ranks on a node (mpirun --map-by slot, srun "
                                 "--distribution=block)");
  return {fmt::format("tensor groups span nodes: {} of {}, the first of ranks {} to {}; {}",
                      spanning, shape.size() / tensor, first, first + tensor - 1, mend)};
}

int shard_inside_node(const GridShape& shape, std::span<const int> node_of) {
  TRIREME_ASSERT(static_cast<int>(node_of.size()) == shape.size(), "{} ranks on nodes, {} in {}",
                 node_of.size(), shape.size(), shape.to_string());
  const int tensor = shape.of(Axis::tensor);
  for (int shard = shape.copies(); shard > 1; --shard) {
    if (shape.copies() % shard != 0) continue;
    bool inside = true;
    for (int rank = 0; inside && rank < shape.size(); ++rank) {
      const int place = rank / tensor % shape.copies();
      if (place % shard == 0) inside = together(node_of, rank, shard, tensor);
    }
    if (inside) return shard;
  }
  return 1;
}

}  // namespace trireme::comm
