// Collectives over the groups of a grid: times, bandwidths and whether the results are right.
// docs/benchmarks.md derives every column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/bench/measure.hpp"
#include "trireme/bench/sheet.hpp"
#include "trireme/comm/grid.hpp"

namespace trireme::bench {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send_receive,
  count
};
std::string_view name_of(Collective operation);
/// Every name, in their order.
std::vector<std::string> collective_names();
bool reduces(Collective operation);

/// What turns algorithm bandwidth S/t into bus bandwidth: bytes that the busiest rank must at least
/// send or receive, over S.
double bus_factor(Collective operation, int ranks);

/// Sizes from `begin` to `end` bytes, each `factor` times the one before. Throws ConfigError where
/// there are none: a benchmark that measures nothing finds nothing wrong.
struct Sizes {
  std::int64_t begin = 8, end = 1 << 24, factor = 8;
  std::vector<std::int64_t> all() const;
};

struct CollectiveOptions {
  std::vector<Collective> operations;
  comm::GroupKind group = comm::GroupKind::world;
  Sizes sizes;
  std::vector<DType> types;
  comm::Reduction reduction = comm::Reduction::sum;
  int root = 0;  // of broadcasts
  Rounds rounds;
  bool check = true;
};

/// All groups of one kind at once, as in training; collective over the world. Wrong elements are
/// added up in `sheet`. Throws AgreedError where a root is in no group.
void bench_collectives(const Place& place, comm::Grid& grid, const CollectiveOptions& options,
                       Sheet& sheet);

}  // namespace trireme::bench
