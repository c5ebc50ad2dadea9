#include "trireme/train/inject.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <thread>

#include "trireme/parallel/replica.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  if (text.empty() || text == "none") return faults;
  const std::string all(text);
  const auto refuse = [&](std::string_view word) {
    return ConfigError(
        "train.inject", all,
        fmt::format(
            "\"{}\" is not nan, inf, spike or flip, @, a step (or slow, @, a factor) and perhaps / "
            "and a rank",
            word),
        "write for example nan@7, flip@12/1 or slow@5/3");
  };
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    std::string_view word = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    const std::size_t at = word.find('@');
    if (at == std::string_view::npos) throw refuse(word);
    Fault fault;
    using Kind = Fault::Kind;
    static constexpr std::pair<std::string_view, Kind> kinds[] = {{"nan", Kind::nan},
                                                                  {"inf", Kind::inf},
                                                                  {"spike", Kind::spike},
                                                                  {"slow", Kind::slow},
                                                                  {"flip", Kind::flip}};
    const auto* kind =
        std::ranges::find(kinds, word.substr(0, at), &std::pair<std::string_view, Kind>::first);
    if (kind == std::end(kinds)) throw refuse(word);
    fault.kind = kind->second;
    const std::string_view place = word.substr(at + 1);
    const std::size_t slash = place.find('/');
    const auto step = to_number<std::int64_t>(place.substr(0, slash));
    const auto rank = slash == std::string_view::npos ? std::optional(0)
                                                      : to_number<int>(place.substr(slash + 1));
    if (!step || *step == 0 || !rank) throw refuse(word);
    fault.step = *step;
    fault.rank = *rank;
    faults.push_back(fault);
  }
  return faults;
}

void FaultInjector::into_batch(data::Batch& batch, std::int64_t step) const {
  const bool spoilt = std::ranges::any_of(faults_, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::nan && fault.step == step && shares_batch_(fault.rank);
  });
  if (spoilt) batch.weights.front() = std::numeric_limits<float>::quiet_NaN();
}

void FaultInjector::into_batch_once(data::Batch& batch, std::int64_t step) {
  const auto made = std::erase_if(faults_, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::nan && fault.rank == rank_ && fault.step <= step;
  });
  if (made > 0) batch.weights.front() = std::numeric_limits<float>::quiet_NaN();
}

void FaultInjector::into_gradients(parallel::Replica& replica, std::int64_t step) const {
  const bool spikes = std::ranges::any_of(faults_, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::spike && fault.step == step;
  });
  const bool infinite = due(Fault::Kind::inf, step);
  if (!spikes && !infinite) return;
  for (int group = 0; group < replica.state().shards().groups(); ++group) {
    const Tensor own = replica.state().own_gradient(group);
    if (spikes) replica.ops().scale(own, 1e6F);
    if (infinite) replica.ops().fill(own, std::numeric_limits<float>::infinity());
  }
  replica.gradients_changed();
}

void FaultInjector::into_weights(parallel::Replica& replica, std::int64_t step,
                                 std::uint64_t seed) const {
  if (!due(Fault::Kind::flip, step)) return;
  const parallel::Flip flip = parallel::flip_bit(replica, seed, static_cast<std::uint64_t>(step));
  fmt::print(stderr, "injected after step {}: rank {}: {}\n", step, rank_, flip.to_string());
}

double FaultInjector::slowness() const {
  double factor = 1;
  for (const Fault& fault : faults_) {
    if (fault.kind == Fault::Kind::slow && fault.rank == rank_) {
      factor = static_cast<double>(fault.step);
    }
  }
  return factor;
}

void FaultInjector::slow_down(double seconds) const {
  if (slowness() <= 1) return;
  std::this_thread::sleep_for(std::chrono::duration<double>((slowness() - 1) * seconds));
}

void check_faults(const std::vector<Fault>& faults, const std::string& value, int ranks,
                  std::int64_t steps) {
  for (const Fault& fault : faults) {
    if (fault.rank >= ranks) {
      throw ConfigError("train.inject", value, fmt::format("there is no rank {}", fault.rank),
                        fmt::format("use a rank from 0 to {}", ranks - 1));
    }
    if (fault.kind != Fault::Kind::slow && fault.step > steps) {
      throw ConfigError("train.inject", value, fmt::format("there is no step {}", fault.step),
                        fmt::format("use a step from 1 to train.steps = {}", steps));
    }
  }
}

bool FaultInjector::due(Fault::Kind kind, std::int64_t step) const {
  return std::ranges::any_of(faults_, [&](const Fault& fault) {
    return fault.kind == kind && fault.step == step && fault.rank == rank_;
  });
}

}  // namespace trireme::train
