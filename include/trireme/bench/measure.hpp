// What benchmarks share: the place where they run, times of repeated work on all ranks, and the
// table and JSON that they go into.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/train/compute_device.hpp"

namespace trireme::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// How often work is repeated: first without being timed, then timed.
struct Rounds {
  std::int64_t warmup = 5, iterations = 20;
};

/// Of all iterations of all ranks, in seconds. `p99`: the least time that 99 of 100 do not exceed
/// (nearest rank).
struct Times {
  double minimum = 0, average = 0, maximum = 0, p99 = 0;
};
/// At least one value.
Times times_of(std::vector<double> seconds);
/// The same over every rank's values; collective, the same on every rank.
Times times_over_ranks(comm::Communicator& world, const std::vector<double>& own);

/// Where benchmarks run. Ranks do everything at once, as in training.
struct Place {
  comm::Session& session;
  comm::Communicator& world;
  const train::ComputeDevice& computes;
  int threads = 1;
  device::Device& device() const { return computes.device(); }
};

/// Waits until the device has done what was queued on it.
inline void settle(device::Device& device) {
  if (!device.is_host()) device::wait_for(device);
}

/// Memory of `ledger`'s device for `shape` elements of `type`, which `buffer` then owns.
inline Tensor allocate(device::Buffer& buffer, device::MemoryLedger& ledger, device::Use use,
                       DType type, const Shape& shape) {
  buffer = device::Buffer(ledger, use, static_cast<std::size_t>(shape.elements()) * size_of(type));
  return buffer.view(type, shape);
}

/// Times of `work`, one by one, over all ranks; collective. The ranks begin together and are not
/// brought together again between iterations: where `work` communicates, one's wait for another is
/// part of it, and where it does not, nothing is. A rank that does not take part only looks on.
template <class Work>
Times time_rounds(const Place& place, const Rounds& rounds, Work&& work, bool takes_part = true) {
  const auto whole = [&] {
    work();
    settle(place.device());
  };
  for (std::int64_t i = 0; takes_part && i < rounds.warmup; ++i) whole();
  place.world.barrier();
  std::vector<double> seconds;
  for (std::int64_t i = 0; takes_part && i < rounds.iterations; ++i) {
    const auto begin = Clock::now();
    whole();
    seconds.push_back(seconds_since(begin));
  }
  return times_over_ranks(place.world, seconds);
}

/// One measurement. Counters are numbers beside the times; rates are per second.
struct Entry {
  std::string name;  // "all_reduce/sum/fp32/1048576/in_place"
  std::int64_t iterations = 0;
  Times times;
  int threads = 1;
  std::vector<std::pair<std::string, double>> counters;
};

/// On rank 0 a table, line by line as it is measured, and at the end the same as JSON in Google
/// Benchmark's layout, so that its tools read it.
class Sheet {
 public:
  struct Column {
    std::string title, unit;
    int width = 0;
  };

  /// `is_root`: on this rank (0). The others collect nothing.
  explicit Sheet(bool is_root) : is_root_(is_root) {}
  /// A line "# KEY: VALUE" of the table, and a member of the JSON's context.
  void note(const std::string& key, const nlohmann::json& value);
  /// The columns of the rows that follow; their two lines begin with "#".
  void columns(std::vector<Column> columns);
  /// One row; a cell for each column, right-aligned.
  void row(const std::vector<std::string>& cells);
  void add(Entry entry);
  /// Columns `before`, the four of the times in microseconds (average, min, max, p99), `after`, and
  /// "#wrong".
  void result_columns(std::vector<Column> before, const std::vector<Column>& after);
  /// A row of these and `entry`, with the wrong results over all ranks; none: not checked.
  void result(Entry entry, std::vector<std::string> before, const std::vector<std::string>& after,
              std::optional<std::int64_t> wrong);
  /// Wrong results: added up, and the last line of the table.
  void wrong(std::int64_t count) { wrong_ += count; }
  std::int64_t wrong() const { return wrong_; }
  /// Google Benchmark's members have its names; each counter is another.
  nlohmann::json json() const;

 private:
  bool is_root_;
  std::vector<Column> columns_;
  nlohmann::json context_ = nlohmann::json::object();
  std::vector<Entry> entries_;
  std::int64_t wrong_ = 0;
};

/// Numbers as cells: four or five digits, however large; and times in microseconds.
std::string cell(double value);
std::string microseconds(double seconds);

}  // namespace trireme::bench
