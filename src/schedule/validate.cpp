#include <algorithm>
#include <array>
#include <cstdint>

#include "trireme/core/config.hpp"

#include "walk.hpp"

namespace trireme::schedule {

namespace {

/// Positions in its stage's list of the actions of one (virtual stage, micro-batch); −1: absent.
struct Pair {
  int forward = -1, input = -1, weight = -1;  // B counts as both input and weight
};

class Validation {
 public:
  explicit Validation(const Schedule& schedule) : schedule_(schedule) {}

  void run(WeightOrder order) {
    check_shape();
    check_complete();
    index();
    check_order();
    if (order == WeightOrder::ascending) check_weights_ascend();
    check_progress();
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw AgreedError("schedule {}: {}", config::one_line(schedule_.name),
                      fmt::format(format, std::forward<Args>(args)...));
  }

  std::string cell(int stage, const Action& action) const {
    return to_string(schedule_, stage, action);
  }

  void check_shape() const {
    if (schedule_.stages < 1 || schedule_.micro_batches < 1 || schedule_.chunks < 1)
      fail("{} stages, {} micro-batches, {} virtual stages per stage: each must be at least 1",
           schedule_.stages, schedule_.micro_batches, schedule_.chunks);
    if (schedule_.actions.size() != at(schedule_.stages))
      fail("has lists for {} stages; {} are needed", schedule_.actions.size(), schedule_.stages);
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const Action& action : list(stage)) {
        if (action.chunk < 0 || action.chunk >= schedule_.chunks)
          fail("stage {}: chunk {} does not exist; it has {}", stage, action.chunk,
               schedule_.chunks);
        if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)
          fail("stage {}: {}: there are {} micro-batches, counted from 0", stage,
               cell(stage, action), schedule_.micro_batches);
      }
    }
  }

  const std::vector<Action>& list(int stage) const { return schedule_.actions[at(stage)]; }

  /// Each pair has F and B, or F, I and W, once each. Works from what is there, so that its cost
  /// does not grow with sizes that a short file merely claims.
  void check_complete() const {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      std::vector<Action> sorted = list(stage);
      std::stable_sort(sorted.begin(), sorted.end(), [](const Action& a, const Action& b) {
        return std::pair(a.chunk, a.micro_batch) < std::pair(b.chunk, b.micro_batch);
      });
      auto next = sorted.cbegin();
      for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
        for (int i = 0; i < schedule_.micro_batches; ++i) {
          std::array<int, 4> count{};
          for (; next != sorted.cend() && next->chunk == chunk && next->micro_batch == i; ++next)
            ++count[static_cast<std::size_t>(next->kind)];
          check_counts(stage, chunk, i, count);
        }
      }
    }
  }

  void check_counts(int stage, int chunk, int micro_batch, const std::array<int, 4>& count) const {
    for (const Kind kind : kinds) {
      const int times = count[static_cast<std::size_t>(kind)];
      if (times > 1)
        fail("stage {}: {} is listed {} times; once is the rule", stage,
             cell(stage, {kind, micro_batch, chunk}), times);
    }
    const auto [forward, whole, input, weight] = count;
    const auto missing = [&](Kind kind) {
      fail(
          "stage {}: {} is missing; each virtual stage needs F and either B or I and W of each of "
          "the {} micro-batches",
          stage, cell(stage, {kind, micro_batch, chunk}), schedule_.micro_batches);
    };
    if (forward == 0) missing(Kind::forward);
    if (whole == 1 && input + weight > 0)
      fail("stage {}: {} and {} exclude each other; B is I and W together", stage,
           cell(stage, {Kind::backward, micro_batch, chunk}),
           cell(stage,
                {input > 0 ? Kind::backward_input : Kind::backward_weight, micro_batch, chunk}));
    if (whole == 1) return;
    if (input + weight == 0) missing(Kind::backward);
    if (input == 0) missing(Kind::backward_input);
    if (weight == 0) missing(Kind::backward_weight);
  }

  Pair& pair(int stage, int chunk, int micro_batch) {
    const std::size_t row = static_cast<std::size_t>(schedule_.virtual_stage(stage, chunk));
    return pairs_[row * at(schedule_.micro_batches) + at(micro_batch)];
  }

  void index() {
    pairs_.resize(at(schedule_.virtual_stages()) * at(schedule_.micro_batches));
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      int position = 0;
      for (const Action& action : list(stage)) {
        Pair& mine = pair(stage, action.chunk, action.micro_batch);
        if (action.kind == Kind::forward) mine.forward = position;
        if (action.makes_gradient()) mine.input = position;
        if (action.frees_stash()) mine.weight = position;
        ++position;
      }
    }
  }

  void check_order() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const Action& action : list(stage)) {
        const Pair& mine = pair(stage, action.chunk, action.micro_batch);
        if (action.makes_gradient() && mine.input < mine.forward)
          fail("stage {}: {} is before {}, whose activations it needs; swap them", stage,
               cell(stage, action), cell(stage, {Kind::forward, action.micro_batch, action.chunk}));
        if (action.kind == Kind::backward_weight && mine.weight < mine.input)
          fail("stage {}: {} is before {}, whose gradients it needs; swap them", stage,
               cell(stage, action),
               cell(stage, {Kind::backward_input, action.micro_batch, action.chunk}));
      }
    }
  }

  void check_weights_ascend() const {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      std::vector<Action> last(at(schedule_.chunks), {Kind::forward, -1, 0});  // of each chunk
      for (const Action& action : list(stage)) {
        if (!action.frees_stash()) continue;
        Action& before = last[at(action.chunk)];
        if (action.micro_batch < before.micro_batch)
          fail(
              "stage {}: {} is after {}; weight gradients are summed in ascending order of "
              "micro-batches where sums are reproducible: exchange them, or set "
              "numerics.reproducible = false",
              stage, cell(stage, action), cell(stage, before));
        before = action;
      }
    }
  }

  /// Position in its list of what `action` waits for on another stage's (or chunk's) list.
  std::optional<std::pair<int, int>> awaited(int stage, const Action& action) {
    const auto source = input_of(schedule_, stage, action);
    if (!source) return std::nullopt;
    const Pair& made = pair(source->stage, source->chunk, action.micro_batch);
    return std::pair(source->stage, source->gradient ? made.input : made.forward);
  }

  /// Every stage continues as far as the others let it, until all are done or none can.
  void check_progress() {
    std::vector<int> done(at(schedule_.stages), 0);
    std::vector<int> work;
    for (int stage = schedule_.stages - 1; stage >= 0; --stage) work.push_back(stage);
    while (!work.empty()) {
      const int stage = work.back();
      work.pop_back();
      int& position = done[at(stage)];
      const int before = position;
      const int size = static_cast<int>(list(stage).size());
      for (; position < size; ++position) {
        const auto source = awaited(stage, list(stage)[at(position)]);
        if (source && done[at(source->first)] <= source->second) break;
      }
      if (position == before) continue;
      for (const int neighbor : {stage + 1, stage + schedule_.stages - 1})
        if (neighbor % schedule_.stages != stage) work.push_back(neighbor % schedule_.stages);
    }
    std::string waits;
    int stuck = 0;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const int position = done[at(stage)];
      if (position == static_cast<int>(list(stage).size())) continue;
      if (++stuck > 4) continue;
      const Action& action = list(stage)[at(position)];
      const auto [other, needed] = awaited(stage, action).value();
      const Action& missing = list(other)[at(needed)];
      waits += fmt::format("{}stage {} waits at {} for {} of stage {}", waits.empty() ? "" : ", ",
                           stage, cell(stage, action), cell(other, missing), other);
    }
    if (stuck == 0) return;
    if (stuck > 4) waits += fmt::format(" and {} more wait", stuck - 4);
    fail("its stages wait for each other: {}; change the order", waits);
  }

  const Schedule& schedule_;
  std::vector<Pair> pairs_;  // [virtual stages × micro-batches]
};

}  // namespace

void validate(const Schedule& schedule, WeightOrder order) { Validation(schedule).run(order); }

}  // namespace trireme::schedule
