#include "trireme/bench/measure.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace trireme::bench {

Times times_of(std::vector<double> seconds) {
  TRIREME_ASSERT(!seconds.empty(), "no iterations");
  std::sort(seconds.begin(), seconds.end());
  const std::size_t count = seconds.size();
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {.minimum = seconds.front(),
          .average = sum / static_cast<double>(count),
          .maximum = seconds.back(),
          .p99 = seconds[(99 * count + 99) / 100 - 1]};
}

Times times_over_ranks(comm::Communicator& world, const std::vector<double>& own) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  std::vector<double> all;
  for (const auto& theirs : world.all_gather_bytes({bytes, own.size() * sizeof(double)})) {
    const std::size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(double));
    if (!theirs.empty()) std::memcpy(all.data() + before, theirs.data(), theirs.size());
  }
  return times_of(std::move(all));
}

}  // namespace trireme::bench
