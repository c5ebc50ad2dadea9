#include "trireme/data/blend.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <utility>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

/// The weights as integers without a common divisor, if they have at most nine decimals and their
/// sum is at most most_parts; else nothing.
std::vector<std::int64_t> exact_parts(std::span<const double> weights) {
  double scale = 1;
  for (int decimals = 0; decimals <= 9; ++decimals, scale *= 10) {
    std::vector<std::int64_t> parts;
    for (const double weight : weights) {
      const double scaled = weight * scale, nearest = std::round(scaled);
      // The decimals of a double are exact to about 16 digits.
      if (nearest > 1e15 || std::abs(scaled - nearest) > 1e-14 * std::max(1.0, nearest)) break;
      if (weight > 0 && nearest == 0) break;
      parts.push_back(static_cast<std::int64_t>(nearest));
    }
    if (parts.size() < weights.size()) continue;
    std::int64_t divisor = 0;
    for (const std::int64_t part : parts) divisor = std::gcd(divisor, part);
    double all = 0;
    for (std::int64_t& part : parts) all += static_cast<double>(part /= divisor);
    return all <= most_parts ? parts : std::vector<std::int64_t>();
  }
  return {};
}

/// The largest remainders get what rounding down leaves over.
std::vector<std::int64_t> nearest_parts(std::span<const double> weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> parts;
  std::vector<std::pair<double, std::size_t>> remainders;  // negative, so that the largest is first
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double ideal = weights[i] / all * most_parts;
    const double floor = weights[i] > 0 ? std::max(1.0, std::floor(ideal)) : 0.0;
    parts.push_back(static_cast<std::int64_t>(floor));
    if (weights[i] > 0) remainders.emplace_back(floor - ideal, i);
  }
  std::sort(remainders.begin(), remainders.end());
  std::int64_t left = most_parts - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (auto at = remainders.begin(); left > 0; --left) {
    ++parts[at->second];
    if (++at == remainders.end()) at = remainders.begin();
  }
  for (; left < 0; ++left) --*std::max_element(parts.begin(), parts.end());
  return parts;
}

/// ⌊a · b / c⌋ of numbers up to most_parts.
std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) { return a * b / c; }

}  // namespace

Shares shares_of(std::span<const double> weights) {
  double all = 0;
  for (const double weight : weights) {
    TRIREME_ASSERT(std::isfinite(weight) && weight >= 0, "weight {}", weight);
    all += weight;
  }
  TRIREME_ASSERT(all > 0 && std::isfinite(all) && std::ssize(weights) <= most_parts,
                 "{} weights of sum {}", weights.size(), all);
  Shares shares{.all = 0, .parts = exact_parts(weights)};
  if (shares.parts.empty()) shares.parts = nearest_parts(weights);
  shares.all = std::accumulate(shares.parts.begin(), shares.parts.end(), std::int64_t{0});
  return shares;
}

/// Earliest deadline first: sample j of a source with q of D parts has one of the slots ⌊jD/q⌋ …
/// ⌈(j+1)D/q⌉ − 1, which keeps the source's count within one sample of its share after each slot.
/// Tijdeman (1980, The chairman assignment problem) shows that such an order exists; and where one
/// exists, the earliest deadline finds it.
std::vector<Blend::Slot> Blend::order_of(const Shares& shares) {
  const std::int64_t all = shares.all;
  struct Next {
    std::int64_t deadline;
    std::uint32_t source;
    bool operator>(const Next& other) const {
      return std::pair(deadline, source) > std::pair(other.deadline, other.source);
    }
  };
  std::priority_queue<Next, std::vector<Next>, std::greater<>> ready;
  std::vector<std::vector<std::uint32_t>> released(static_cast<std::size_t>(all));  // by slot
  std::vector<std::int64_t> taken(shares.parts.size());
  const auto release = [&](std::uint32_t source, std::int64_t earliest) {
    const std::int64_t part = shares.parts[source];
    if (taken[source] == part) return;
    const std::int64_t slot = std::max(earliest, scaled(taken[source], all, part));
    released[static_cast<std::size_t>(slot)].push_back(source);
  };
  for (std::uint32_t source = 0; source < shares.parts.size(); ++source) release(source, 0);
  std::vector<Slot> order;
  order.reserve(static_cast<std::size_t>(all));
  for (std::int64_t slot = 0; slot < all; ++slot) {
    for (const std::uint32_t source : std::exchange(released[static_cast<std::size_t>(slot)], {})) {
      const std::int64_t part = shares.parts[source];
      ready.push({scaled(taken[source] + 1, all, part) - (((taken[source] + 1) * all) % part == 0),
                  source});
    }
    TRIREME_ASSERT(!ready.empty() && ready.top().deadline >= slot, "slot {} of {}", slot, all);
    const std::uint32_t source = ready.top().source;
    ready.pop();
    order.push_back({source, static_cast<std::uint32_t>(taken[source]++)});
    release(source, slot + 1);
  }
  return order;
}

Blend::Blend(const std::vector<BlendPhase>& phases, std::vector<std::int64_t> given) {
  TRIREME_ASSERT(!phases.empty(), "a blend of no phase");
  for (const BlendPhase& phase : phases) {
    TRIREME_ASSERT(phase.shares.parts.size() == given.size() && phase.first >= 0 &&
                       (phases_.empty() || phases_.back().begun.phase.first < phase.first),
                   "{} sources, a phase of {} from sample {}", given.size(),
                   phase.shares.parts.size(), phase.first);
    if (!phases_.empty()) given = this->given(phase.first);
    phases_.push_back(
        {{phase, given}, std::make_shared<const std::vector<Slot>>(order_of(phase.shares))});
  }
}

const Blend::Phase& Blend::phase_of(std::int64_t sample) const {
  const auto after = std::upper_bound(
      phases_.begin(), phases_.end(), sample,
      [](std::int64_t s, const Phase& phase) { return s < phase.begun.phase.first; });
  TRIREME_ASSERT(after != phases_.begin(), "sample {} before the first phase", sample);
  return *std::prev(after);
}

const Blend::Begun& Blend::begun(std::int64_t sample) const { return phase_of(sample).begun; }

Blend::Place Blend::at(std::int64_t sample) const {
  const Phase& phase = phase_of(sample);
  const auto& [first, shares] = phase.begun.phase;
  const Slot& slot = (*phase.order)[static_cast<std::size_t>((sample - first) % shares.all)];
  return {slot.source, phase.begun.given[slot.source] +
                           (sample - first) / shares.all * shares.parts[slot.source] + slot.before};
}

std::vector<std::int64_t> Blend::given(std::int64_t sample) const {
  const Phase& phase = phase_of(sample);
  const auto& [first, shares] = phase.begun.phase;
  std::vector<std::int64_t> given = phase.begun.given;
  for (std::size_t i = 0; i < given.size(); ++i) {
    given[i] += (sample - first) / shares.all * shares.parts[i];
  }
  for (std::int64_t slot = 0; slot < (sample - first) % shares.all; ++slot) {
    ++given[(*phase.order)[static_cast<std::size_t>(slot)].source];
  }
  return given;
}

}  // namespace trireme::data
