// Checks lists of steps against the rules of trireme/schedule/messages.hpp: computes are the
// schedule's, every message has both sides in the same order on its channel, receives precede and
// sends directly follow their computes, and no slot is overwritten in use.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "trireme/schedule/messages.hpp"

namespace trireme::schedule {

class MessageCheck {
 public:
  MessageCheck(const Schedule& schedule, const std::vector<StageSteps>& lists)
      : schedule_(schedule), lists_(lists), sent_(lists.size()), received_(lists.size()) {}

  void run() {
    if (lists_.size() != schedule_.actions.size())
      fail("{} lists for {} stages", lists_.size(), schedule_.actions.size());
    for (int stage = 0; stage < schedule_.stages; ++stage) check_stage(stage);
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const bool gradient : {false, true}) check_channel(stage, gradient);
    }
  }

 private:
  /// A message, as the receiver's action that needs it.
  struct Message {
    int stage = 0;
    Action action;
  };
  /// The other side of a message.
  struct End {
    int stage = 0;
    int chunk = 0;
    bool gradient = false;
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  End end_of(int virtual_stage, bool gradient) const {
    return {virtual_stage % schedule_.stages, virtual_stage / schedule_.stages, gradient};
  }
  /// Where an action's input is produced.
  std::optional<End> source_of(int stage, const Action& action) const {
    const int here = stage + action.chunk * schedule_.stages;
    if (action.kind == Kind::forward) {
      return here == 0 ? std::nullopt : std::optional(end_of(here - 1, false));
    }
    const bool last = here == schedule_.stages * schedule_.chunks - 1;
    if (action.kind == Kind::backward_weight || last) return std::nullopt;
    return end_of(here + 1, true);
  }
  /// Where an action's result is needed.
  std::optional<End> target_of(int stage, const Action& action) const {
    const int here = stage + action.chunk * schedule_.stages;
    if (action.kind == Kind::forward) {
      const bool last = here == schedule_.stages * schedule_.chunks - 1;
      return last ? std::nullopt : std::optional(end_of(here + 1, false));
    }
    if (action.kind == Kind::backward_weight || here == 0) return std::nullopt;
    return end_of(here - 1, true);
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw AgreedError("messages of schedule {}: {}", schedule_.name,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  /// The action that needs the contents of each of a stage's slots, by direction.
  struct Held {
    std::array<std::vector<std::optional<Action>>, 2> slots;
    Held(int activations, int gradients)
        : slots{std::vector<std::optional<Action>>(at(activations)),
                std::vector<std::optional<Action>>(at(gradients))} {}
  };

  void check_stage(int stage) {
    const StageSteps& list = lists_[at(stage)];
    const bool local = schedule_.stages == 1;
    Held inputs(local ? list.local_activation_slots : list.receive_activation_slots,
                local ? list.local_gradient_slots : list.receive_gradient_slots);
    const Held outputs(list.send_activation_slots, list.send_gradient_slots);
    std::size_t computed = 0;
    const Step* to_send = nullptr;  // the compute whose send must come next
    for (const Step& step : list.steps) {
      if (to_send != nullptr) {
        check_send(stage, *to_send, step, outputs);
        to_send = nullptr;
      } else if (step.kind == Step::Kind::compute) {
        const auto& actions = schedule_.actions[at(stage)];
        if (computed == actions.size() || step.action != actions[computed])
          fail("stage {}: compute {} is {}, not the schedule's", stage, computed,
               cell(stage, step));
        ++computed;
        take_input(stage, step, inputs);
        const bool output = target_of(stage, step.action).has_value();
        if (!output && step.output_slot >= 0)
          fail("stage {}: no action needs what {} writes", stage, cell(stage, step));
        if (output && local) put_local(step, inputs);
        if (output && !local) to_send = &step;
      } else if (step.is_receive() && !local) {
        put_received(stage, step, inputs);
      } else {
        fail("stage {}: a send for {} does not follow its compute", stage, cell(stage, step));
      }
    }
    if (to_send != nullptr)
      fail("stage {}: what {} makes is not sent", stage, cell(stage, *to_send));
    if (computed != schedule_.actions[at(stage)].size())
      fail("stage {}: {} of {} computes", stage, computed, schedule_.actions[at(stage)].size());
    for (const auto& slots : inputs.slots) {
      for (const auto& held : slots)
        if (held)
          fail("stage {}: nothing reads what was received for {}", stage,
               to_string(schedule_, stage, *held));
    }
  }

  std::string cell(int stage, const Step& step) const {
    return to_string(schedule_, stage, step.action);
  }

  std::optional<Action>& slot_in(int stage, const Step& step, int slot, bool gradient, Held& held) {
    auto& slots = held.slots[gradient];
    if (slot < 0 || at(slot) >= slots.size())
      fail("stage {}: {}: {} slot {} does not exist; there are {}", stage, cell(stage, step),
           gradient ? "gradient" : "activation", slot, slots.size());
    return slots[at(slot)];
  }

  void put(int stage, const Step& step, int slot, bool gradient, const Action& reader, Held& held) {
    auto& place = slot_in(stage, step, slot, gradient, held);
    if (place)
      fail("stage {}: slot {} is overwritten for {} before {} has read it", stage, slot,
           to_string(schedule_, stage, reader), to_string(schedule_, stage, *place));
    place = reader;
  }

  void put_received(int stage, const Step& step, Held& inputs) {
    const bool gradient = step.is_gradient();
    const auto source = source_of(stage, step.action);
    if (!source || source->gradient != gradient || source->stage != step.peer_stage)
      fail("stage {}: {} needs no such message from stage {}", stage, cell(stage, step),
           step.peer_stage);
    put(stage, step, step.slot, gradient, step.action, inputs);
    received_[at(stage)][gradient].push_back({stage, step.action});
  }

  /// The action that needs the result of `action` of `stage`.
  Message reader_of(int stage, const Action& action) const {
    const End target = target_of(stage, action).value();
    // A B and an I need the same message.
    return {
        target.stage,
        {target.gradient ? Kind::backward_input : Kind::forward, action.micro_batch, target.chunk}};
  }

  static bool same(const Action& a, const Action& b) {
    return a.makes_gradient() == b.makes_gradient() && a.micro_batch == b.micro_batch &&
           a.chunk == b.chunk;
  }

  void put_local(const Step& step, Held& inputs) {
    const Message message = reader_of(0, step.action);
    put(0, step, step.output_slot, message.action.makes_gradient(), message.action, inputs);
  }

  void take_input(int stage, const Step& step, Held& inputs) {
    const auto source = source_of(stage, step.action);
    if (!source && step.input_slot < 0) return;
    if (!source) fail("stage {}: {} needs no input", stage, cell(stage, step));
    auto& place = slot_in(stage, step, step.input_slot, source->gradient, inputs);
    if (!place || !same(*place, step.action))
      fail("stage {}: the input of {} is not in its slot {}", stage, cell(stage, step),
           step.input_slot);
    place.reset();
  }

  void check_send(int stage, const Step& compute, const Step& step, const Held& outputs) {
    const End target = target_of(stage, compute.action).value();
    const auto kind = target.gradient ? Step::Kind::send_gradient : Step::Kind::send_activation;
    if (step.kind != kind || step.action != compute.action || step.peer_stage != target.stage ||
        step.slot != compute.output_slot)
      fail("stage {}: {} is not followed by its send to stage {}", stage, cell(stage, compute),
           target.stage);
    if (step.slot < 0 || at(step.slot) >= outputs.slots[target.gradient].size())
      fail("stage {}: {}: send slot {} does not exist", stage, cell(stage, compute), step.slot);
    const Message message = reader_of(stage, compute.action);
    sent_[at(message.stage)][target.gradient].push_back(message);
  }

  void check_channel(int stage, bool gradient) const {
    const auto& sent = sent_[at(stage)][gradient];
    const auto& received = received_[at(stage)][gradient];
    const char* what = gradient ? "gradient" : "activation";
    for (std::size_t i = 0; i < std::min(sent.size(), received.size()); ++i) {
      if (!same(sent[i].action, received[i].action))
        fail(
            "stage {}: {} {} is received for {} but sent for {}; both sides must start in the "
            "same order",
            stage, what, i, to_string(schedule_, stage, received[i].action),
            to_string(schedule_, stage, sent[i].action));
    }
    if (sent.size() != received.size())
      fail("stage {}: {} {}s are received, {} are sent", stage, received.size(), what, sent.size());
  }

  const Schedule& schedule_;
  const std::vector<StageSteps>& lists_;
  // By receiver and direction; a channel has one sender.
  std::vector<std::array<std::vector<Message>, 2>> sent_, received_;
};

/// Throws AgreedError that names the first fault.
inline void check_messages(const Schedule& schedule, const std::vector<StageSteps>& lists) {
  MessageCheck(schedule, lists).run();
}

}  // namespace trireme::schedule
