#include "trireme/parallel/lowering.hpp"

#include <algorithm>
#include <map>

namespace trireme::parallel {

namespace {

using Kind = UnitAction::Kind;

bool reads_values(Kind kind) {
  return kind == Kind::forward || kind == Kind::backward || kind == Kind::recompute ||
         kind == Kind::backward_input;
}

/// First pass: turns computes into unit actions and assigns their slots.
class Computes {
 public:
  Computes(const LoweringOptions& options, Program& program)
      : options_(options),
        program_(program),
        stash_(options.chunk_units.size()),
        pending_(options.chunk_units.size()) {}

  void add(const schedule::Step& step) {
    const schedule::Action& action = step.action;
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const std::pair key(action.chunk, action.micro_batch);
    using schedule::Kind;
    switch (action.kind) {
      case Kind::forward:
        stash_of_[key] = stash_[chunk].take();
        add_units(step, UnitAction::Kind::forward);
        return;
      case Kind::backward:
        add_units(step, UnitAction::Kind::backward);
        stash_[chunk].release(stash_of_[key]);
        return;
      case Kind::backward_input:
        pending_of_[key] = pending_[chunk].take();
        add_units(step, UnitAction::Kind::backward_input);
        return;
      case Kind::backward_weight:
        add_units(step, UnitAction::Kind::backward_weight);
        pending_[chunk].release(pending_of_[key]);
        stash_[chunk].release(stash_of_[key]);
        return;
    }
  }
  void finish() {
    for (const schedule::Slots& slots : stash_) program_.stash_slots.push_back(slots.count());
    for (const schedule::Slots& slots : pending_) program_.pending_slots.push_back(slots.count());
  }

 private:
  UnitAction unit_action(const schedule::Step& step, UnitAction::Kind kind, std::int64_t unit) {
    const schedule::Action& action = step.action;
    const std::pair key(action.chunk, action.micro_batch);
    UnitAction result{.kind = kind,
                      .micro_batch = action.micro_batch,
                      .chunk = action.chunk,
                      .unit = static_cast<int>(unit)};
    result.stash = stash_of_.at(key);
    const auto pending = pending_of_.find(key);
    if (pending != pending_of_.end()) result.pending = pending->second;
    return result;
  }
  /// Forward visits the chunk's units in ascending order, backward in descending.
  void add_units(const schedule::Step& step, UnitAction::Kind kind) {
    const params::Range& units = options_.chunk_units[static_cast<std::size_t>(step.action.chunk)];
    for (std::int64_t i = 0; i < units.size(); ++i) {
      const bool forward = kind == UnitAction::Kind::forward;
      const std::int64_t unit = forward ? units.begin + i : units.end - 1 - i;
      if (kind == UnitAction::Kind::backward_input && options_.recompute) {
        program_.actions.push_back(unit_action(step, UnitAction::Kind::recompute, unit));
      }
      UnitAction action = unit_action(step, kind, unit);
      if (i == 0) action.input_slot = step.input_slot;
      if (i + 1 == units.size()) action.output_slot = step.output_slot;
      program_.actions.push_back(action);
    }
  }

  const LoweringOptions& options_;
  Program& program_;
  std::vector<schedule::Slots> stash_, pending_;
  std::map<std::pair<int, int>, int> stash_of_, pending_of_;
};

/// Second pass: reductions of gradients. A group's is due once each of its units here has added its
/// part, of every micro-batch or of one.
void insert_reductions(const params::Layout& layout, const LoweringOptions& options,
                       Program& program) {
  const auto groups = layout.groups().size();
  std::vector<int> left(groups, 0);          // contributions still to come
  std::vector<std::int64_t> lowest(groups);  // unit that comes last in backward
  std::vector<bool> tied(groups, false);     // to a unit of another stage
  for (std::size_t g = 0; g < groups; ++g) {
    lowest[g] = layout.groups()[g].units.back();
    for (int unit : layout.groups()[g].units) {
      if (layout.has_unit(unit)) {
        lowest[g] = std::min<std::int64_t>(lowest[g], unit);
      } else {
        tied[g] = true;
      }
    }
  }
  for (const UnitAction& action : program.actions) {
    if (!action.ends_gradients()) continue;
    for (int g : layout.groups_of(action.unit)) ++left[static_cast<std::size_t>(g)];
  }
  if (std::all_of(left.begin(), left.end(), [](int count) { return count == 0; })) return;
  std::vector<UnitAction> result;
  for (const UnitAction& action : program.actions) {
    result.push_back(action);
    if (!action.ends_gradients()) continue;
    for (int g : layout.groups_of(action.unit)) {
      const auto i = static_cast<std::size_t>(g);
      --left[i];
      const bool due = options.reduces_each_micro_batch ? action.unit == lowest[i] : left[i] == 0;
      const bool waits = tied[i] && !options.reduces_each_micro_batch;
      if (!due || waits) continue;
      result.push_back({.kind = Kind::reduce, .micro_batch = action.micro_batch, .group = g});
    }
  }
  for (std::size_t g = 0; g < groups; ++g) {
    if (tied[g]) result.push_back({.kind = Kind::reduce_tied, .group = static_cast<int>(g)});
  }
  program.actions = std::move(result);
}

/// Third pass: gathers of sharded parameters, each one unit action ahead of its use where its
/// buffer is free by then.
class Gathers {
 public:
  Gathers(const params::Layout& layout, const LoweringOptions& options)
      : layout_(layout), options_(options) {}

  std::vector<UnitAction> insert(const std::vector<UnitAction>& actions) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const UnitAction& action = actions[i];
      if (reads_values(action.kind)) {
        for (int g : layout_.groups_of(action.unit)) need(g);
      }
      const std::size_t place = out_.size();
      out_.push_back(action);
      if (!reads_values(action.kind)) continue;
      before_last_use_ = place;
      for (int g : layout_.groups_of(action.unit)) {
        Buffer& buffer = buffers_[buffer_of(g)];
        buffer.used = place;
        const bool last_use = action.kind == Kind::backward || action.kind == Kind::backward_input;
        if ((options_.reshard_after_forward || last_use) && !next_needs(actions, i, g)) {
          buffer.group = -1;
        }
      }
    }
    return std::move(out_);
  }

 private:
  struct Buffer {
    int group = -1;        // gathered in it
    std::size_t used = 0;  // index of the last action that read it
    bool filled = false;   // at least once
  };
  int buffer_of(int group) const {
    return options_.gather_buffers[static_cast<std::size_t>(group)];
  }

  void need(int group) {
    Buffer& buffer = buffers_[buffer_of(group)];
    if (buffer.group == group) return;
    std::size_t place = std::min(before_last_use_, out_.size());
    if (buffer.filled) place = std::max(place, buffer.used + 1);
    out_.insert(out_.begin() + static_cast<std::ptrdiff_t>(place),
                {.kind = Kind::gather, .group = group});
    for (auto& [number, other] : buffers_) {
      if (other.filled && other.used >= place) ++other.used;
    }
    if (before_last_use_ >= place && before_last_use_ + 1 < out_.size()) ++before_last_use_;
    buffer.group = group;
    buffer.filled = true;
    buffer.used = std::max(buffer.used, place);
  }
  /// Whether the next action that reads parameters needs group `g`.
  bool next_needs(const std::vector<UnitAction>& actions, std::size_t i, int g) const {
    for (std::size_t j = i + 1; j < actions.size(); ++j) {
      if (!reads_values(actions[j].kind)) continue;
      const auto& groups = layout_.groups_of(actions[j].unit);
      return std::find(groups.begin(), groups.end(), g) != groups.end();
    }
    return false;
  }

  const params::Layout& layout_;
  const LoweringOptions& options_;
  std::vector<UnitAction> out_;
  std::map<int, Buffer> buffers_;
  std::size_t before_last_use_ = 0;
};

const char* name_of(UnitAction::Kind kind) {
  switch (kind) {
    case Kind::receive:
      return "receive";
    case Kind::send:
      return "send";
    case Kind::gather:
      return "gather";
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::recompute:
      return "recompute";
    case Kind::backward_input:
      return "backward input";
    case Kind::backward_weight:
      return "backward weight";
    case Kind::reduce:
      return "reduce";
    case Kind::reduce_tied:
      return "reduce tied";
  }
  no_case_for(kind);
}

}  // namespace

bool UnitAction::is_compute() const {
  switch (kind) {
    case Kind::forward:
    case Kind::backward:
    case Kind::recompute:
    case Kind::backward_input:
    case Kind::backward_weight:
      return true;
    case Kind::receive:
    case Kind::send:
    case Kind::gather:
    case Kind::reduce:
    case Kind::reduce_tied:
      return false;
  }
  no_case_for(kind);
}

std::string to_string(const UnitAction& action) {
  std::string text = name_of(action.kind);
  if (action.unit >= 0) text += fmt::format(" unit {}", action.unit);
  if (action.group >= 0) text += fmt::format(" group {}", action.group);
  if (action.peer >= 0) {
    text += fmt::format(" {} {} stage {}", action.gradient ? "gradient" : "activation",
                        action.kind == Kind::send ? "to" : "from", action.peer);
  }
  if (action.micro_batch >= 0) text += fmt::format(" of micro-batch {}", action.micro_batch);
  return text;
}

Program lower(const schedule::StageSteps& steps, const params::Layout& layout,
              const LoweringOptions& options) {
  Program program;
  program.receive_activation_slots = steps.receive_activation_slots;
  program.receive_gradient_slots = steps.receive_gradient_slots;
  program.send_activation_slots = steps.send_activation_slots;
  program.send_gradient_slots = steps.send_gradient_slots;
  TRIREME_ASSERT(steps.local_activation_slots == 0, "virtual stages of one stage");
  Computes computes(options, program);
  for (const schedule::Step& step : steps.steps) {
    if (step.kind == schedule::Step::Kind::compute) {
      computes.add(step);
      continue;
    }
    program.actions.push_back({.kind = step.is_receive() ? Kind::receive : Kind::send,
                               .micro_batch = step.action.micro_batch,
                               .peer = step.peer_stage,
                               .slot = step.slot,
                               .gradient = step.is_gradient()});
  }
  computes.finish();
  insert_reductions(layout, options, program);
  if (options.gathers) program.actions = Gathers(layout, options).insert(program.actions);
  return program;
}

}  // namespace trireme::parallel
