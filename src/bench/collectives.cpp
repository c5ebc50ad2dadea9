#include <algorithm>
#include <array>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/exact.hpp"

namespace trireme::bench {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Collective::count)> names = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_receive"};

/// Whether an operation's larger buffer is a block for each rank.
bool in_blocks(Collective operation) {
  return operation == Collective::reduce_scatter || operation == Collective::all_gather ||
         operation == Collective::all_to_all;
}

}  // namespace

std::string_view name_of(Collective operation) {
  return names.at(static_cast<std::size_t>(operation));
}

std::vector<std::string> collective_names() { return {names.begin(), names.end()}; }

bool reduces(Collective operation) {
  return operation == Collective::all_reduce || operation == Collective::reduce_scatter;
}

double bus_factor(Collective operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == Collective::all_reduce) return 2 * others;
  if (in_blocks(operation)) return others;
  return ranks > 1 ? 1 : 0;  // broadcast, send_receive
}

std::vector<std::int64_t> Sizes::all() const {
  if (begin > end) {
    throw ConfigError("--begin", std::to_string(begin), fmt::format("is above --end = {}", end),
                      "use a smaller one, or name a larger --end");
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = begin; size <= end; size *= factor) {
    sizes.push_back(size);
    if (size > end / factor) break;  // the next one may not be a number any more
  }
  return sizes;
}

std::vector<std::int64_t> Sizes::counts(std::int64_t element_bytes) const {
  std::vector<std::int64_t> counts;
  for (const std::int64_t size : all()) {
    counts.push_back(std::max<std::int64_t>(1, size / element_bytes));
  }
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

namespace {

/// One operation on one size, with its buffers.
class Trial {
 public:
  /// `count`: elements of the whole for all_reduce, broadcast and send_receive, of each rank's
  /// block for the others.
  Trial(const Place& place, comm::Grid& grid, const CollectiveOptions& options,
        Collective operation, DType type, std::int64_t count)
      : place_(place),
        group_(grid.group(options.group)),
        options_(options),
        operation_(operation),
        members_(comm::members(grid.shape(), options.group, place.session.rank())),
        count_(count),
        ledger_(place.device()),
        stream_(place.device()),
        numbers_(Numbers::for_sums_of(group_.size(), type)) {
    const std::int64_t whole = count * (in_blocks(operation) ? group_.size() : 1);
    const bool gathers = operation == Collective::all_gather;
    const bool scatters = operation == Collective::reduce_scatter;
    constexpr device::Use use = device::Use::communication;
    input_ = allocate(input_memory_, ledger_, use, type, {gathers ? count : whole});
    output_ = allocate(output_memory_, ledger_, use, type, {scatters ? count : whole});
  }

  /// Whether the operation has an in-place form.
  bool has_in_place() const {
    return operation_ != Collective::all_to_all && operation_ != Collective::send_receive;
  }

  Times time(bool in_place) {
    // Sums of zeros stay what they are, however often they are made.
    zero(place_.device(), input_);
    zero(place_.device(), output_);
    return time_rounds(place_, options_.rounds, [&] { run(in_place); });
  }

  /// Wrong elements on this rank after one operation on numbers that are known.
  std::int64_t check(bool in_place) {
    device::Device& device = place_.device();
    const int rank = group_.rank();
    const Tensor from = sent(in_place), to = received(in_place);
    if (!in_place) poison(device, to);
    // Where an input is inside the output, the rest of the output must be written.
    if (in_place && operation_ == Collective::all_gather) poison(device, output_);
    if (in_place && operation_ == Collective::broadcast) poison(device, output_);
    if (operation_ != Collective::broadcast || rank == options_.root) {
      fill_with(device, from, [&](std::int64_t i) { return number(rank, i); });
    }
    run(in_place);
    return count_wrong(device, to, [&](std::int64_t i) { return expected(i); });
  }

 private:
  Tensor own_block(const Tensor& whole) const {
    return whole.slice(0, group_.rank() * count_, (group_.rank() + 1) * count_);
  }
  Tensor sent(bool in_place) const {
    if (!in_place || operation_ == Collective::reduce_scatter) return input_;
    return operation_ == Collective::all_gather ? own_block(output_) : output_;
  }
  Tensor received(bool in_place) const {
    const bool inside = in_place && operation_ == Collective::reduce_scatter;
    return inside ? own_block(input_) : output_;
  }

  void run(bool in_place) {
    const Tensor from = sent(in_place), to = received(in_place);
    start(from, to, in_place).wait();
    settle(place_.device());
  }
  /// The group's all-reduce and broadcast are in place: for another place the input is copied
  /// first, as a caller would who needs it again.
  device::Event start(const Tensor& from, const Tensor& to, bool in_place) {
    switch (operation_) {
      case Collective::all_reduce:
        if (!in_place) place_.device().copy(to.data(), from.data(), to.bytes());
        return group_.all_reduce(to, options_.reduction, stream_);
      case Collective::broadcast:
        if (!in_place && group_.rank() == options_.root) {
          place_.device().copy(to.data(), from.data(), to.bytes());
        }
        return group_.broadcast(to, options_.root, stream_);
      case Collective::reduce_scatter:
        return group_.reduce_scatter(to, from, options_.reduction, stream_);
      case Collective::all_gather:
        return group_.all_gather(to, from, stream_);
      case Collective::all_to_all:
        return group_.all_to_all(to, from, stream_);
      case Collective::send_receive:
        return group_.exchange({{from, next(1), true}, {to, next(-1), false}}, stream_);
      case Collective::count:
        break;
    }
    no_case_for(operation_);
  }
  int next(int step) const { return (group_.rank() + step + group_.size()) % group_.size(); }

  /// Of a rank of the group; groups have different numbers, since they are at work at once.
  std::int64_t number(int rank, std::int64_t place) const {
    return numbers_.at(members_[static_cast<std::size_t>(rank)], place);
  }
  std::int64_t reduced(std::int64_t place) const {
    std::int64_t result = 0;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const std::int64_t value = number(rank, place);
      result =
          options_.reduction == comm::Reduction::sum ? result + value : std::max(result, value);
    }
    return result;
  }
  std::int64_t expected(std::int64_t i) const {
    const auto block = static_cast<int>(i / count_);
    switch (operation_) {
      case Collective::all_reduce:
        return reduced(i);
      case Collective::reduce_scatter:
        return reduced(group_.rank() * count_ + i);
      case Collective::all_gather:
        return number(block, i % count_);
      case Collective::broadcast:
        return number(options_.root, i);
      case Collective::all_to_all:
        return number(block, group_.rank() * count_ + i % count_);
      case Collective::send_receive:
        return number(next(-1), i);
      case Collective::count:
        break;
    }
    no_case_for(operation_);
  }

  const Place& place_;
  comm::Communicator& group_;
  const CollectiveOptions& options_;
  Collective operation_;
  std::vector<int> members_;  // world ranks of the group
  std::int64_t count_;
  device::MemoryLedger ledger_;
  device::Stream stream_;
  device::Buffer input_memory_, output_memory_;
  Tensor input_, output_;
  Numbers numbers_;
};

std::vector<Sheet::Column> collective_columns() {
  std::vector<Sheet::Column> columns = {{"size", "B", 11},
                                        {"count", "elements", 11},
                                        {"type", "", 6},
                                        {"redop", "", 5},
                                        {"root", "", 4}};
  for (int form = 0; form < 2; ++form) {
    columns.insert(
        columns.end(),
        {{"time", "us", 9}, {"algbw", "GB/s", 7}, {"busbw", "GB/s", 7}, {"#wrong", "", 6}});
  }
  // Beside what other tools print: out-of-place first, as above.
  for (const char* form : {"o", "i"}) {
    for (const char* what : {"min", "max", "p99"}) {
      columns.push_back({fmt::format("{}.{}", what, form), "us", 9});
    }
  }
  return columns;
}

/// A row: one operation on one size, out of place and in place. `ranks`: of the largest group.
void measure(const Place& place, comm::Grid& grid, const CollectiveOptions& options, Sheet& sheet,
             Collective operation, DType type, std::int64_t count, int ranks) {
  comm::Communicator& group = grid.group(options.group);
  Trial trial(place, grid, options, operation, type, count);
  const std::int64_t bytes =
      count * static_cast<std::int64_t>(size_of(type)) * (in_blocks(operation) ? ranks : 1);
  const bool rooted = operation == Collective::broadcast;
  const std::string reduction = !reduces(operation)                         ? "none"
                                : options.reduction == comm::Reduction::sum ? "sum"
                                                                            : "max";
  std::vector<std::string> cells = {std::to_string(bytes), std::to_string(count),
                                    std::string(trireme::name_of(type)), reduction,
                                    std::to_string(rooted ? options.root : -1)};
  std::vector<std::string> spread;
  for (const bool in_place : {false, true}) {
    if (in_place && !trial.has_in_place()) {
      cells.insert(cells.end(), 4, "N/A");
      spread.insert(spread.end(), 3, "N/A");
      continue;
    }
    group.reset_traffic();
    const Times times = trial.time(in_place);
    const std::int64_t sent =
        place.world.all_reduce(group.traffic().total().bytes, comm::Reduction::max) /
        (options.rounds.warmup + options.rounds.iterations);
    const double algorithm = static_cast<double>(bytes) / times.average;
    const double bus = algorithm * bus_factor(operation, ranks);
    Entry entry{
        .name = fmt::format("{}/{}/{}/{}/{}", name_of(operation), reduction, trireme::name_of(type),
                            bytes, in_place ? "in_place" : "out_of_place"),
        .iterations = options.rounds.iterations,
        .times = times,
        .threads = place.session.size(),
        .counters = {{"size", static_cast<double>(bytes)},
                     {"algbw", algorithm},
                     {"busbw", bus},
                     {"sent_bytes", static_cast<double>(sent)}}};
    std::string wrong = "N/A";
    if (options.check) {
      const std::int64_t all = place.world.all_reduce(trial.check(in_place), comm::Reduction::sum);
      sheet.wrong(all);
      wrong = std::to_string(all);
      entry.counters.emplace_back("wrong", static_cast<double>(all));
    }
    sheet.add(std::move(entry));
    cells.insert(cells.end(),
                 {microseconds(times.average), cell(algorithm / 1e9), cell(bus / 1e9), wrong});
    spread.insert(spread.end(), {microseconds(times.minimum), microseconds(times.maximum),
                                 microseconds(times.p99)});
  }
  cells.insert(cells.end(), spread.begin(), spread.end());
  sheet.row(cells);
}

}  // namespace

void bench_collectives(const Place& place, comm::Grid& grid, const CollectiveOptions& options,
                       Sheet& sheet) {
  comm::Communicator& group = grid.group(options.group);
  const std::int64_t smallest =
      -place.world.all_reduce(-std::int64_t{group.size()}, comm::Reduction::max);
  if (options.root >= smallest) {
    throw AgreedError("--root = {}: a group has {} ranks; use 0 to {}", options.root, smallest,
                      smallest - 1);
  }
  const std::int64_t first = group.rank() == 0 ? 1 : 0;
  const std::int64_t groups = place.world.all_reduce(first, comm::Reduction::sum);
  // Groups may differ in size (an embedding group is a rank alone between the outer stages); the
  // columns are of the largest.
  const std::int64_t largest =
      place.world.all_reduce(std::int64_t{group.size()}, comm::Reduction::max);
  sheet.note("grid", grid.shape().to_string());
  sheet.note("groups", fmt::format("{} {}, {} ranks, at once", groups, comm::name_of(options.group),
                                   largest));
  // A rank alone only copies.
  sheet.note("backend", largest == 1 ? "none" : std::string(name_of(grid.backend(options.group))));
  for (const Collective operation : options.operations) {
    sheet.note("operation", std::string(name_of(operation)));
    sheet.columns(collective_columns());
    for (const DType type : options.types) {
      const std::int64_t blocks = in_blocks(operation) ? largest : 1;
      for (const std::int64_t count :
           options.sizes.counts(static_cast<std::int64_t>(size_of(type)) * blocks)) {
        measure(place, grid, options, sheet, operation, type, count, static_cast<int>(largest));
      }
    }
  }
}

}  // namespace trireme::bench
