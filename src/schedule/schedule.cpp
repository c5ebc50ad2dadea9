#include "trireme/schedule/schedule.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/config.hpp"
#include "trireme/core/text.hpp"

namespace trireme::schedule {

namespace {

using Actions = std::vector<Action>;

/// Above this a step's lists would fill memory, and the numbers are probably a typo.
constexpr std::int64_t most_pairs = 1 << 20;

Actions gpipe(const Schedule& plan, int /*stage*/) {
  Actions actions;
  for (int chunk = 0; chunk < plan.chunks; ++chunk) {
    for (int i = 0; i < plan.micro_batches; ++i) actions.push_back({Kind::forward, i, chunk});
  }
  for (int chunk = plan.chunks - 1; chunk >= 0; --chunk) {
    for (int i = 0; i < plan.micro_batches; ++i) actions.push_back({Kind::backward, i, chunk});
  }
  return actions;
}

/// `ahead` forwards, then forward and backward in turn, then the backwards that remain.
Actions in_turn(const Actions& forwards, const Actions& backwards, std::size_t ahead) {
  ahead = std::min(ahead, forwards.size());
  Actions actions(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) actions.push_back(forwards[ahead + i]);
    actions.push_back(backwards[i]);
  }
  return actions;
}

Actions one_forward_one_backward(const Schedule& plan, int stage) {
  Actions forwards;
  Actions backwards;
  for (int i = 0; i < plan.micro_batches; ++i) {
    forwards.push_back({Kind::forward, i, 0});
    backwards.push_back({Kind::backward, i, 0});
  }
  return in_turn(forwards, backwards, static_cast<std::size_t>(plan.stages - stage - 1));
}

/// A round of micro-batches runs through the first chunk, then the next; backwards from the last
/// chunk to the first. A round shorter than the pipeline would come back to the first stage before
/// that has anything else to do, and with the backwards in between the stages would wait for each
/// other: so `micro_batches` / `stages` rounds of nearly equal size, the larger first (or one). The
/// first backward of the last stage waits for (chunks − 1) passes of the first round, and each
/// stage before it is two forwards further ahead: one for the way to the last stage, one for the
/// way back.
Actions interleaved(const Schedule& plan, int stage) {
  if (plan.chunks == 1) return one_forward_one_backward(plan, stage);
  Actions forwards;
  Actions backwards;
  const int rounds = std::max(1, plan.micro_batches / plan.stages);
  const auto size = [&](int round) {
    return plan.micro_batches / rounds + (round < plan.micro_batches % rounds ? 1 : 0);
  };
  for (int round = 0, first = 0; round < rounds; first += size(round), ++round) {
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      for (int i = first; i < first + size(round); ++i) {
        forwards.push_back({Kind::forward, i, chunk});
        backwards.push_back({Kind::backward, i, plan.chunks - 1 - chunk});
      }
    }
  }
  const int ahead = 2 * (plan.stages - stage - 1) + (plan.chunks - 1) * size(0);
  return in_turn(forwards, backwards, static_cast<std::size_t>(ahead));
}

/// 1F1B's order of F and I; stage s lets each W wait until s further I have run, so that no stage
/// has more than `stages` micro-batches in flight and gradients reach the first stage sooner by the
/// weight parts that later stages have put off.
Actions zero_bubble(const Schedule& plan, int stage) {
  const int ahead = std::min(plan.stages - stage - 1, plan.micro_batches);
  Actions actions;
  for (int i = 0; i < ahead; ++i) actions.push_back({Kind::forward, i, 0});
  for (int i = 0; i < plan.micro_batches; ++i) {
    if (ahead + i < plan.micro_batches) actions.push_back({Kind::forward, ahead + i, 0});
    actions.push_back({Kind::backward_input, i, 0});
    if (i >= stage) actions.push_back({Kind::backward_weight, i - stage, 0});
  }
  for (int i = std::max(0, plan.micro_batches - stage); i < plan.micro_batches; ++i)
    actions.push_back({Kind::backward_weight, i, 0});
  return actions;
}

struct Generator {
  const char* name;
  Actions (*make)(const Schedule& plan, int stage);  // one stage's
  bool chunked;                                      // with any number of virtual stages
};
constexpr std::array<Generator, 4> generators{{{"gpipe", gpipe, true},
                                               {"1f1b", one_forward_one_backward, false},
                                               {"interleaved", interleaved, true},
                                               {"zero-bubble", zero_bubble, false}}};

void check_sizes(const Schedule& plan) {
  const std::pair<const char*, int> sizes[] = {{"parallel.pipeline", plan.stages},
                                               {"parallel.virtual_stages", plan.chunks},
                                               {"micro-batches", plan.micro_batches}};
  for (const auto& [key, value] : sizes) {
    if (value < 1)
      throw ConfigError(key, std::to_string(value), "must be at least 1", "use 1 or more");
  }
  const double pairs = 1.0 * plan.stages * plan.chunks * plan.micro_batches;
  if (pairs > static_cast<double>(most_pairs))
    throw ConfigError(
        "micro-batches", std::to_string(plan.micro_batches),
        fmt::format("{} with {} each give more than {} forwards", counted(plan.stages, "stage"),
                    counted(plan.chunks, "virtual stage"), most_pairs),
        "use larger and fewer micro-batches");
}

/// Costs as whole numbers with a sum of at most about 2³⁰, by a power of two: sums and their
/// squares are exact then, and equal costs stay equal.
std::vector<std::int64_t> whole(std::span<const double> costs) {
  double sum = 0;
  for (const double cost : costs) {
    TRIREME_ASSERT(std::isfinite(cost) && cost >= 0, "cost {}", cost);
    sum += cost;
  }
  TRIREME_ASSERT(std::isfinite(sum), "the costs' sum overflows");
  int exponent = 0;
  std::frexp(sum, &exponent);  // sum < 2^exponent
  std::vector<std::int64_t> scaled;
  for (const double cost : costs)
    scaled.push_back(std::llround(std::ldexp(cost, sum > 0 ? 30 - exponent : 0)));
  return scaled;
}

/// Runs of units with the least sum of squared costs among those whose runs cost at most `largest`.
/// sums: costs of the first i units, i = 0 … n. Where a run ends grows with where it begins (the
/// squares meet the quadrangle inequality), so a table of r runs takes r·n·log n steps.
class Squares {
 public:
  Squares(std::vector<std::int64_t> sums, int runs) : sums_(std::move(sums)) {
    const int width = units() - runs + 1;
    best_.resize(static_cast<std::size_t>(runs) + 1,
                 std::vector<std::int64_t>(static_cast<std::size_t>(width), never));
    largest_ = least_largest(runs);
    at(0, units()) = 0;
    for (int k = 1; k <= runs; ++k) {
      const int before = runs - k;
      fill(k, before, before + width - 1, before + 1, before + width);
    }
  }

  /// Where runs end: the first of equals, counting units of the first run, the second, ….
  std::vector<int> ends() {
    std::vector<int> first{0};
    for (int left = static_cast<int>(best_.size()) - 1; left > 0; --left) {
      int end = first.back() + 1;
      while (cost(left, first.back(), end) != at(left, first.back())) ++end;
      first.push_back(end);
    }
    return first;
  }

 private:
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
  int units() const { return static_cast<int>(sums_.size()) - 1; }
  std::int64_t sum(int begin, int end) const {
    return sums_[static_cast<std::size_t>(end)] - sums_[static_cast<std::size_t>(begin)];
  }

  /// The least bound on a run's cost with which at most `runs` runs hold all units.
  std::int64_t least_largest(int runs) const {
    std::int64_t below = -1, enough = sums_.back();
    while (enough - below > 1) {
      const std::int64_t bound = below + (enough - below) / 2;
      int needed = 1, begin = 0;
      for (int unit = 0; unit < units() && needed <= runs; ++unit) {
        if (sum(begin, unit + 1) > bound) ++needed, begin = unit;
        if (sum(unit, unit + 1) > bound) needed = runs + 1;
      }
      (needed <= runs ? enough : below) = bound;
    }
    return enough;
  }

  /// The least sum of squares of units from `begin` on in k runs. Each run before has a unit.
  std::int64_t& at(int k, int begin) {
    const int before = static_cast<int>(best_.size()) - 1 - k;
    return best_[static_cast<std::size_t>(k)][static_cast<std::size_t>(begin - before)];
  }

  /// Of k runs whose first is [begin, end).
  std::int64_t cost(int k, int begin, int end) {
    const std::int64_t run = sum(begin, end), rest = at(k - 1, end);
    return run > largest_ || rest == never ? never : run * run + rest;
  }

  /// at(k, begin) for begin in [low, high], whose first run ends in [first, last].
  void fill(int k, int low, int high, int first, int last) {
    if (low > high) return;
    const int begin = low + (high - low) / 2;
    int best = -1;
    for (int end = std::max(first, begin + 1); end <= last && sum(begin, end) <= largest_; ++end) {
      const std::int64_t all = cost(k, begin, end);
      if (all < at(k, begin)) at(k, begin) = all, best = end;
    }
    // Where no first run can be made, too much is left: nor can it before.
    if (best >= 0) fill(k, low, begin - 1, first, best);
    fill(k, begin + 1, high, best < 0 ? first : best, last);
  }

  std::vector<std::int64_t> sums_;
  std::vector<std::vector<std::int64_t>> best_;  // [runs + 1][units − runs + 1]
  std::int64_t largest_ = 0;
};

}  // namespace

char letter(Kind kind) { return std::string_view("FBIW").at(static_cast<std::size_t>(kind)); }

bool Schedule::splits_backward() const {
  return std::any_of(actions.begin(), actions.end(), [](const Actions& stage) {
    return std::any_of(stage.begin(), stage.end(),
                       [](const Action& action) { return action.kind == Kind::backward_weight; });
  });
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Generator& generator : generators) result.emplace_back(generator.name);
    return result;
  }();
  return names;
}

Schedule make_schedule(std::string_view name, int stages, int micro_batches, int chunks) {
  Schedule plan{std::string(name), stages, micro_batches, chunks, {}};
  const auto* generator = std::find_if(generators.begin(), generators.end(),
                                       [&](const Generator& known) { return known.name == name; });
  if (generator == generators.end()) {
    std::string listed;
    for (const std::string& known : schedule_names()) listed += known + ", ";
    const auto near = config::nearest(plan.name, schedule_names());
    throw ConfigError("parallel.schedule", config::one_line(plan.name),
                      "must be one of " + listed + "file:PATH",
                      near ? "did you mean " + *near + "?" : "use one of these");
  }
  check_sizes(plan);
  if (chunks > 1 && !generator->chunked)
    throw ConfigError("parallel.virtual_stages", std::to_string(chunks),
                      fmt::format("parallel.schedule = {} has one virtual stage per stage", name),
                      "use 1, or parallel.schedule = interleaved");
  for (int stage = 0; stage < stages; ++stage) {
    plan.actions.push_back(generator->make(plan, stage));
  }
  return plan;
}

std::string to_string(const Schedule& schedule, int stage, const Action& action) {
  return fmt::format("{}{}{}", schedule.virtual_stage(stage, action.chunk), letter(action.kind),
                     action.micro_batch);
}

std::vector<int> split_units(std::span<const double> costs, int virtual_stages) {
  TRIREME_ASSERT(virtual_stages >= 1, "{} virtual stages", virtual_stages);
  const int units = static_cast<int>(costs.size());
  if (units < virtual_stages)
    throw ConfigError(
        "parallel.pipeline x parallel.virtual_stages", std::to_string(virtual_stages),
        fmt::format("each needs at least one of the model's {} units (embedding, blocks, head)",
                    units),
        fmt::format("use a product of at most {}, or more layers", units));
  std::vector<std::int64_t> sums{0};  // of the first i units
  for (const std::int64_t cost : whole(costs)) sums.push_back(sums.back() + cost);
  return Squares(std::move(sums), virtual_stages).ends();
}

}  // namespace trireme::schedule
