// The trace of a rank while its step runs.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "trireme/plan/trace.hpp"

namespace trireme::plan {

/// Collects the calls of one rank. Operations are known by the number of their start.
class Recording {
 public:
  void compute(const Work& work) {
    if (!recording_) return;
    const auto [place, is_new] =
        places_.try_emplace(work.key(), static_cast<int>(trace_.works.size()));
    if (is_new) trace_.works.push_back(work);
    add({Instruction::Kind::compute, place->second});
  }
  int start(const StreamOperation& operation) {
    std::vector<StreamOperation>& list = capturing_ ? captured_.operations : trace_.operations;
    const auto number = static_cast<int>(started_.size());
    started_.push_back({.index = static_cast<int>(list.size()), .waited = !recording_});
    if (!recording_) return number;
    list.push_back(operation);
    add({Instruction::Kind::start, number});
    return number;
  }
  void wait(int number) {
    Started& started = started_[static_cast<std::size_t>(number)];
    if (started.waited) return;
    started.waited = true;
    if (capturing_ && number < first_captured_) waits_for_others_ = true;
    add({Instruction::Kind::wait, number});
  }
  void wait_for_device() { add({Instruction::Kind::wait_for_device, 0}); }
  int make_stream() {
    last_.push_back(-1);
    return static_cast<int>(last_.size()) - 1;
  }
  /// The operation that a stream began last; -1: none.
  int& last_of(int stream) { return last_[static_cast<std::size_t>(stream)]; }

  /// What is called from now on, or no longer, is part of the step.
  void record(bool on) { recording_ = on; }
  /// Records what `compute` calls, or the section that an earlier action of the kind left.
  void action(const parallel::ActionKind& kind, const std::function<void()>& compute) {
    if (!recording_) return compute();
    const auto known = sections_.find(kind);
    if (known == sections_.end()) {
      sections_[kind] = capture(compute);
    } else if (known->second == none) {
      compute();
    } else {
      repeat(known->second);
    }
  }
  Trace take() { return std::move(trace_); }

 private:
  struct Started {
    int index = 0;  // of the operations of the trace or section
    bool waited = false;
  };
  static constexpr int none = -1;  // of a section: its calls are recorded one by one

  /// Operations by number, which captured ones keep until it is known where they go.
  void add(Instruction instruction) {
    if (!recording_) return;
    if (capturing_) return captured_.instructions.push_back(instruction);
    resolve(instruction);
    trace_.instructions.push_back(instruction);
  }
  void resolve(Instruction& instruction) const {
    if (instruction.kind != Instruction::Kind::start && instruction.kind != Instruction::Kind::wait)
      return;
    instruction.index = started_[static_cast<std::size_t>(instruction.index)].index;
  }
  /// The section of what `compute` calls; none where it leaves something under way, or waits for
  /// what was under way before.
  int capture(const std::function<void()>& compute) {
    capturing_ = true;
    waits_for_others_ = false;
    captured_ = {};
    first_captured_ = static_cast<int>(started_.size());
    compute();
    capturing_ = false;
    const auto first = started_.begin() + first_captured_;
    const bool ended =
        std::all_of(first, started_.end(), [](const Started& each) { return each.waited; });
    if (ended && !waits_for_others_) {
      for (Instruction& each : captured_.instructions) resolve(each);
      const auto section = static_cast<int>(trace_.sections.size());
      trace_.sections.push_back(std::move(captured_));
      add({Instruction::Kind::section, section});
      return section;
    }
    const auto before = static_cast<int>(trace_.operations.size());
    std::for_each(first, started_.end(), [&](Started& each) { each.index += before; });
    for (StreamOperation& each : captured_.operations) {
      trace_.operations.push_back(std::move(each));
    }
    for (const Instruction& each : captured_.instructions) add(each);
    return none;
  }
  void repeat(int section) {
    add({Instruction::Kind::section, section});
    for (const StreamOperation& each :
         trace_.sections[static_cast<std::size_t>(section)].operations) {
      if (each.local == 0) continue;
      started_.push_back({.waited = true});
      last_of(each.stream) = static_cast<int>(started_.size()) - 1;
    }
  }

  Trace trace_;
  Section captured_;
  bool recording_ = false, capturing_ = false, waits_for_others_ = false;
  int first_captured_ = 0;
  std::map<decltype(Work().key()), int> places_;
  std::map<parallel::ActionKind, int> sections_;
  std::vector<Started> started_;
  std::vector<int> last_;  // by stream
};

}  // namespace trireme::plan
