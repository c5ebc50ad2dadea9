#include "trireme/comm/traffic.hpp"

namespace trireme::comm {

std::string_view name_of(OperationKind kind) {
  constexpr std::array<std::string_view, operation_kinds> names = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "exchange"};
  static_assert(!names.back().empty());
  return names.at(static_cast<std::size_t>(kind));
}

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes += other.bytes;
  operations += other.operations;
  seconds += other.seconds;
  return *this;
}

Traffic TrafficByKind::total() const {
  Traffic sum;
  for (const Traffic& each : kinds) sum += each;
  return sum;
}

TrafficByKind& TrafficByKind::operator+=(const TrafficByKind& other) {
  for (std::size_t kind = 0; kind < operation_kinds; ++kind) kinds[kind] += other.kinds[kind];
  return *this;
}

void TrafficCounter::add(OperationKind kind, const Traffic& traffic) {
  const std::lock_guard lock(mutex_);
  traffic_.kinds[static_cast<std::size_t>(kind)] += traffic;
}

TrafficByKind TrafficCounter::read() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void TrafficCounter::reset() {
  const std::lock_guard lock(mutex_);
  traffic_ = {};
}

}  // namespace trireme::comm
