#include <array>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/exact.hpp"

namespace trireme::bench {
namespace {

enum class Pattern : std::uint8_t { ping_pong, activations, gradients, both };
constexpr std::array<const char*, 4> pattern_names{"ping-pong", "activations", "gradients", "both"};

class Messages {
 public:
  Messages(const Place& place, comm::Grid& grid, DType type, std::int64_t count)
      : place_(place),
        grid_(grid),
        down_(grid.pipeline_channel(comm::Direction::activations)),
        up_(grid.pipeline_channel(comm::Direction::gradients)),
        stage_(down_.rank()),
        stages_(down_.size()),
        ledger_(place.device()),
        streams_{device::Stream(place.device()), device::Stream(place.device()),
                 device::Stream(place.device()), device::Stream(place.device())} {
    grid.connect_stages(links());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      tensors_[i] = allocate(memory_[i], ledger_, device::Use::communication, type, {count});
    }
  }

  bool takes_part(Pattern pattern) const {
    return pattern != Pattern::ping_pong || stages_ % 2 == 0 || stage_ + 1 < stages_;
  }

  void run(Pattern pattern) {
    if (pattern == Pattern::ping_pong) return ping_pong();
    std::vector<device::Event> events;
    if (pattern != Pattern::gradients) pass(down_, 1, 0, events);
    if (pattern != Pattern::activations) pass(up_, -1, 1, events);
    for (const device::Event& event : events) event.wait();
    settle(place_.device());
  }

  /// Wrong elements on this rank after one such exchange of known numbers.
  std::int64_t check(Pattern pattern) {
    device::Device& device = place_.device();
    for (const int direction : {0, 1}) {
      fill_with(device, sent(direction),
                [&](std::int64_t i) { return numbers_.at(sender(stage_, direction), i); });
      poison(device, received(direction));
    }
    run(pattern);
    std::int64_t wrong = 0;
    const auto compare = [&](int direction, int from) {
      if (from < 0 || from >= stages_) return;
      wrong += count_wrong(device, received(direction),
                           [&](std::int64_t i) { return numbers_.at(sender(from, direction), i); });
    };
    if (pattern == Pattern::ping_pong) {
      const int partner = stage_ % 2 == 0 ? stage_ + 1 : stage_ - 1;
      compare(stage_ % 2 == 0 ? 1 : 0, partner);
      return wrong;
    }
    if (pattern != Pattern::gradients) compare(0, stage_ - 1);
    if (pattern != Pattern::activations) compare(1, stage_ + 1);
    return wrong;
  }

 private:
  Tensor sent(int direction) const { return tensors_[2 * static_cast<std::size_t>(direction)]; }
  Tensor received(int direction) const {
    return tensors_[2 * static_cast<std::size_t>(direction) + 1];
  }
  /// Distinct for stages, directions and pipelines.
  std::int64_t sender(int stage, int direction) const {
    const std::vector<int> members =
        comm::members(grid_.shape(), comm::GroupKind::pipeline, place_.session.rank());
    return 2 * members[static_cast<std::size_t>(stage)] + direction;
  }
  std::vector<comm::StageLink> links() const {
    std::vector<comm::StageLink> links;
    for (const int first : {stage_ - 1, stage_}) {
      if (first < 0 || first + 1 >= stages_) continue;
      links.push_back({comm::Direction::activations, first, first + 1});
      links.push_back({comm::Direction::gradients, first + 1, first});
    }
    return links;
  }
  /// Every stage sends one step on and receives from the other side, each on a stream of its own.
  void pass(comm::Communicator& channel, int step, int direction,
            std::vector<device::Event>& events) {
    const int to = stage_ + step, from = stage_ - step;
    device::Stream* const streams = &streams_[2 * static_cast<std::size_t>(direction)];
    if (to >= 0 && to < stages_) {
      events.push_back(channel.exchange({{sent(direction), to, true}}, streams[0]));
    }
    if (from >= 0 && from < stages_) {
      events.push_back(channel.exchange({{received(direction), from, false}}, streams[1]));
    }
  }
  /// Stages 0 and 1, 2 and 3, …: there by the one channel, back by the other. A last stage without
  /// a partner looks on.
  void ping_pong() {
    const bool first = stage_ % 2 == 0;
    const int partner = first ? stage_ + 1 : stage_ - 1;
    if (partner >= stages_) return;
    down_.exchange({{first ? sent(0) : received(0), partner, first}}, streams_[0]).wait();
    settle(place_.device());
    up_.exchange({{first ? received(1) : sent(1), partner, !first}}, streams_[2]).wait();
    settle(place_.device());
  }

  const Place& place_;
  comm::Grid& grid_;
  comm::Communicator &down_, &up_;
  int stage_, stages_;
  device::MemoryLedger ledger_;
  std::array<device::Stream, 4> streams_;  // by direction: sends, receives
  std::array<device::Buffer, 4> memory_;
  std::array<Tensor, 4> tensors_;
  Numbers numbers_{64};
};

void measure(const Place& place, comm::Grid& grid, const StageMessageOptions& options, Sheet& sheet,
             DType type, std::int64_t count) {
  const auto bytes = count * static_cast<std::int64_t>(size_of(type));
  for (int i = 0; i < 4; ++i) {
    const auto pattern = static_cast<Pattern>(i);
    Messages messages(place, grid, type, count);
    Times times = time_rounds(
        place, options.rounds, [&] { messages.run(pattern); }, messages.takes_part(pattern));
    // A round of ping-pong is two messages, one after the other.
    const double steps = pattern == Pattern::ping_pong ? 2 : 1;
    for (double* each : {&times.minimum, &times.average, &times.maximum, &times.p99})
      *each /= steps;
    const double ways = pattern == Pattern::both ? 2 : 1;
    const double bandwidth = ways * static_cast<double>(bytes) / times.average;
    const char* name = pattern_names.at(static_cast<std::size_t>(i));
    std::optional<std::int64_t> wrong;
    if (options.check) {
      wrong = place.world.all_reduce(messages.check(pattern), comm::Reduction::sum);
    }
    sheet.result(
        {.name = fmt::format("pipeline/{}/{}/{}", name, name_of(type), bytes),
         .iterations = options.rounds.iterations,
         .times = times,
         .threads = place.session.size(),
         .counters = {{"size", static_cast<double>(bytes)}, {"bandwidth", bandwidth}}},
        {std::to_string(bytes), std::to_string(count), std::string(trireme::name_of(type)), name},
        {cell(bandwidth / 1e9)}, wrong);
  }
}

}  // namespace

void bench_stage_messages(const Place& place, comm::Grid& grid, const StageMessageOptions& options,
                          Sheet& sheet) {
  if (grid.shape().of(comm::Axis::pipeline) < 2) {
    throw AgreedError(
        "bench pipeline: one stage has no neighbors; use more ranks, or a parallel.pipeline of 2 "
        "or more");
  }
  sheet.note("grid", grid.shape().to_string());
  sheet.note("backend", "mpi");
  sheet.result_columns(
      {{"size", "B", 11}, {"count", "elements", 11}, {"type", "", 6}, {"direction", "", 11}},
      {{"bandwidth", "GB/s", 9}});
  for (const DType type : options.types) {
    for (const std::int64_t count :
         options.sizes.counts(static_cast<std::int64_t>(size_of(type)))) {
      measure(place, grid, options, sheet, type, count);
    }
  }
}

}  // namespace trireme::bench
