#include "trireme/schedule/schedule.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "trireme/core/config.hpp"

namespace trireme::schedule {

namespace {

using Actions = std::vector<Action>;

/// Above this a step's lists would fill memory, and the numbers are probably a typo.
constexpr std::int64_t most_pairs = 1 << 24;

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
        fmt::format("{} stages with {} virtual stages each give more than {} forwards", plan.stages,
                    plan.chunks, most_pairs),
        "use larger and fewer micro-batches");
}

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

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

/// best[k][i]: the least cost of units i … n−1 in k runs, where a run's cost and the rest's are
/// joined by `join`; `never` if there are too few units or a run is forbidden (`never`).
template <class Run, class Join>
std::vector<std::vector<std::int64_t>> best_of_rests(int units, int runs, Run run, Join join) {
  const auto columns = static_cast<std::size_t>(units) + 1;
  std::vector best(static_cast<std::size_t>(runs) + 1, std::vector(columns, never));
  best[0][columns - 1] = 0;
  for (std::size_t k = 1; k < best.size(); ++k) {
    for (std::size_t i = 0; i + 1 < columns; ++i) {
      for (std::size_t end = i + 1; end < columns; ++end) {
        const std::int64_t first = run(i, end), rest = best[k - 1][end];
        if (first == never || rest == never) continue;
        best[k][i] = std::min(best[k][i], join(first, rest));
      }
    }
  }
  return best;
}

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
  const auto cost = [&sums](std::size_t begin, std::size_t end) { return sums[end] - sums[begin]; };
  const auto runs = static_cast<std::size_t>(virtual_stages);

  const std::int64_t largest =
      best_of_rests(units, virtual_stages, cost,
                    [](std::int64_t a, std::int64_t b) { return std::max(a, b); })[runs][0];
  const auto square = [&](std::size_t begin, std::size_t end) {
    const std::int64_t sum = cost(begin, end);
    return sum <= largest ? sum * sum : never;
  };
  const auto best = best_of_rests(units, virtual_stages, square,
                                  [](std::int64_t a, std::int64_t b) { return a + b; });
  std::vector<int> first{0};
  for (std::size_t left = runs, begin = 0; left > 0; --left) {
    std::size_t end = begin + 1;
    while (best[left - 1][end] == never || square(begin, end) == never ||
           square(begin, end) + best[left - 1][end] != best[left][begin])
      ++end;
    first.push_back(static_cast<int>(end));
    begin = end;
  }
  return first;
}

}  // namespace trireme::schedule
