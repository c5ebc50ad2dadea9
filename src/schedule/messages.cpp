#include "trireme/schedule/messages.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "walk.hpp"

namespace trireme::schedule {

namespace {

/// By stage and direction.
using SendSlots = std::vector<std::array<int, 2>>;

/// One being sent while the next is computed.
constexpr int least_send_slots = 2;

/// A message as its receiver sees it.
struct Incoming {
  int consumer = 0;  // position of the action that needs it
  int start = 0;     // position of the action that its receive precedes
};

class Lowering {
 public:
  explicit Lowering(const Schedule& schedule)
      : schedule_(schedule), incoming_(at(schedule.stages)) {
    order_messages();
  }

  std::vector<StageSteps> lists(const SendSlots& slots) const {
    std::vector<StageSteps> result;
    for (int stage = 0; stage < schedule_.stages; ++stage)
      result.push_back(stage_list(stage, slots[at(stage)]));
    return result;
  }

  /// One stage: its chunks exchange data without messages.
  StageSteps local_list() const {
    StageSteps list;
    std::array<Slots, 2> slots;
    std::array<std::vector<int>, 2> slot_of;  // by the consumer's (virtual stage, micro-batch)
    for (auto& map : slot_of)
      map.resize(at(schedule_.virtual_stages()) * at(schedule_.micro_batches), -1);
    for (const Action& action : actions(0)) {
      Step step{Step::Kind::compute, action};
      if (const auto target = output_of(schedule_, 0, action)) {
        step.output_slot = slots[target->gradient].take();
        slot_of[target->gradient][row(0, target->chunk, action.micro_batch)] = step.output_slot;
      }
      if (const auto source = input_of(schedule_, 0, action)) {
        step.input_slot = slot_of[source->gradient][row(0, action.chunk, action.micro_batch)];
        slots[source->gradient].release(step.input_slot);
      }
      list.steps.push_back(step);
    }
    list.local_activation_slots = slots[0].count();
    list.local_gradient_slots = slots[1].count();
    return list;
  }

 private:
  const std::vector<Action>& actions(int stage) const { return schedule_.actions[at(stage)]; }

  std::size_t row(int stage, int chunk, int micro_batch) const {
    return at(schedule_.virtual_stage(stage, chunk)) * at(schedule_.micro_batches) +
           at(micro_batch);
  }

  /// Each receiver's messages in the order in which their sender makes them, and where their
  /// receives go: one compute ahead of the one that needs them, or before a later message of
  /// the same channel that must start by then.
  void order_messages() {
    std::array<std::vector<int>, 2> consumers;  // positions by (virtual stage, micro-batch)
    for (auto& positions : consumers)
      positions.resize(at(schedule_.virtual_stages()) * at(schedule_.micro_batches), -1);
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      int position = 0;
      for (const Action& action : actions(stage)) {
        if (const auto source = input_of(schedule_, stage, action))
          consumers[source->gradient][row(stage, action.chunk, action.micro_batch)] = position;
        ++position;
      }
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const Action& action : actions(stage)) {
        const auto target = output_of(schedule_, stage, action);
        if (!target) continue;
        const int consumer =
            consumers[target->gradient][row(target->stage, target->chunk, action.micro_batch)];
        incoming_[at(target->stage)][target->gradient].push_back(
            {consumer, std::max(consumer - 1, 0)});
      }
    }
    for (auto& directions : incoming_) {
      for (auto& messages : directions) {
        int earliest = std::numeric_limits<int>::max();
        for (auto message = messages.rbegin(); message != messages.rend(); ++message)
          earliest = message->start = std::min(earliest, message->start);
      }
    }
  }

  StageSteps stage_list(int stage, const std::array<int, 2>& send_slots) const {
    StageSteps list;
    std::array<Slots, 2> receive_slots;
    std::array<std::size_t, 2> started{};
    std::array<int, 2> sent{};
    std::vector<int> slot_of(actions(stage).size(), -1);  // of the message that an action needs
    int position = 0;
    for (const Action& action : actions(stage)) {
      for (const int gradient : {0, 1}) {
        const auto& messages = incoming_[at(stage)][at(gradient)];
        std::size_t& next = started[at(gradient)];
        for (; next < messages.size() && messages[next].start == position; ++next) {
          const int slot = receive_slots[at(gradient)].take();
          const int consumer = messages[next].consumer;
          slot_of[at(consumer)] = slot;
          list.steps.push_back(receive_step(stage, consumer, gradient == 1, slot));
        }
      }
      Step step{Step::Kind::compute, action};
      step.input_slot = slot_of[at(position)];
      const auto target = output_of(schedule_, stage, action);
      if (target) step.output_slot = sent[target->gradient]++ % send_slots[target->gradient];
      list.steps.push_back(step);
      if (step.input_slot >= 0)
        receive_slots[action.kind == Kind::forward ? 0 : 1].release(step.input_slot);
      if (target)
        list.steps.push_back(
            {target->gradient ? Step::Kind::send_gradient : Step::Kind::send_activation, action,
             target->stage, step.output_slot});
      ++position;
    }
    list.receive_activation_slots = receive_slots[0].count();
    list.receive_gradient_slots = receive_slots[1].count();
    list.send_activation_slots = std::min(sent[0], send_slots[0]);
    list.send_gradient_slots = std::min(sent[1], send_slots[1]);
    return list;
  }

  Step receive_step(int stage, int consumer, bool gradient, int slot) const {
    const Action& action = actions(stage)[at(consumer)];
    return {gradient ? Step::Kind::receive_gradient : Step::Kind::receive_activation, action,
            input_of(schedule_, stage, action)->stage, slot};
  }

  const Schedule& schedule_;
  std::vector<std::array<std::vector<Incoming>, 2>> incoming_;  // [stages][direction]
};

}  // namespace

std::vector<StageSteps> add_messages(const Schedule& schedule) {
  validate(schedule);
  const Lowering lowering(schedule);
  if (schedule.stages == 1) return {lowering.local_list()};
  const SendSlots own_slot_each(at(schedule.stages), {schedule.micro_batches * schedule.chunks,
                                                      schedule.micro_batches * schedule.chunks});
  const auto lists = lowering.lists(own_slot_each);
  const Costs unit = Costs::uniform(schedule.virtual_stages(), 1, 1, 1);
  Walk walk(schedule, lists, unit);
  // Only the schedule's own order could hold it up, and that is valid.
  const bool done = walk.run();
  TRIREME_ASSERT(done, "{}", walk.waits());
  SendSlots slots;
  for (int stage = 0; stage < schedule.stages; ++stage)
    slots.push_back({std::max(least_send_slots, walk.send_slots(stage, false)),
                     std::max(least_send_slots, walk.send_slots(stage, true))});
  return lowering.lists(slots);
}

}  // namespace trireme::schedule
