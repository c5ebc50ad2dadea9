#include "trireme/schedule/schedule.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

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

/// `ahead` forwards, then forward and backward in turn, then the backwards that remain. Both lists
/// are equally long.
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
  if (plan.stages < 1)
    throw ConfigError("parallel.pipeline", std::to_string(plan.stages), "must be at least 1",
                      "use 1 or more");
  if (plan.chunks < 1)
    throw ConfigError("parallel.virtual_stages", std::to_string(plan.chunks), "must be at least 1",
                      "use 1 or more");
  if (plan.micro_batches < 1)
    throw ConfigError("micro-batches", std::to_string(plan.micro_batches), "must be at least 1",
                      "use 1 or more");
  const double pairs = 1.0 * plan.stages * plan.chunks * plan.micro_batches;
  if (pairs > static_cast<double>(most_pairs))
    throw ConfigError(
        "micro-batches", std::to_string(plan.micro_batches),
        fmt::format("{} stages with {} virtual stages each give more than {} forwards", plan.stages,
                    plan.chunks, most_pairs),
        "use larger and fewer micro-batches");
}

}  // namespace

char letter(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return 'F';
    case Kind::backward:
      return 'B';
    case Kind::backward_input:
      return 'I';
    case Kind::backward_weight:
      return 'W';
  }
  throw Error("schedule action {}", static_cast<int>(kind));
}

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

}  // namespace trireme::schedule
