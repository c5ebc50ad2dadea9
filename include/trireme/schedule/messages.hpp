// A schedule's actions joined by the messages between stages: the list that an engine walks.
//
// How a list is walked. Steps start in list order. A start never blocks the list, except that
// - a compute first waits for the message in its `input_slot` and for the earlier send from its
//   `output_slot` (that slot is about to be written);
// - a receive first waits for the earlier compute that reads the same slot; it stands earlier in
//   the list, so this costs something only where computes run asynchronously.
// A send starts when the compute right before it has finished. All steps are done at the end.
//
// Channels. A stage sends activations to the next stage and gradients to the one before, both
// cyclic (the last stage's activations go on in the first stage's next chunk). For each ordered
// pair of stages there is one channel per direction, activation and gradient; messages of one
// channel start in the same order on both sides, and neither channel waits for another.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.hpp"

namespace trireme::schedule {

struct Step {
  enum class Kind { receive_activation, receive_gradient, compute, send_activation, send_gradient };
  Kind kind = Kind::compute;
  /// compute: what is computed; receive: this stage's action that needs the message; send: the one
  /// that made it.
  Action action;
  int peer_stage = -1;  // messages: the other side
  int slot = -1;        // messages: the buffer, of this stage, direction and side
  /// compute: where its input waits, a receive slot (a local one where there is one stage); −1: it
  /// needs none (first virtual stage's F, last one's B or I, any W).
  int input_slot = -1;
  /// compute: where it writes what the next virtual stage (F) or the one before (B, I) needs, a
  /// send slot (a local one where there is one stage); −1: nobody needs it.
  int output_slot = -1;

  bool is_receive() const {
    return kind == Kind::receive_activation || kind == Kind::receive_gradient;
  }
  /// Of messages: whether it is a gradient; else an activation.
  bool is_gradient() const { return kind == Kind::receive_gradient || kind == Kind::send_gradient; }
  bool operator==(const Step&) const = default;
};

/// One stage's list and how many buffers of each sort it needs. Activations and gradients of one
/// virtual stage boundary are equally large: [micro-batch's tokens, width].
struct StageSteps {
  std::vector<Step> steps;
  int receive_activation_slots = 0;
  int receive_gradient_slots = 0;
  int send_activation_slots = 0;
  int send_gradient_slots = 0;
  /// With one stage there are no messages: these carry data between its chunks, from the compute
  /// that writes to the end of the one that reads.
  int local_activation_slots = 0;
  int local_gradient_slots = 0;
};

/// The lists of all stages. A receive stands just before the compute that precedes the one that
/// needs it (earlier where the sender's order demands it). Each direction has two send slots, or as
/// many as it takes that no compute waits for one when F, I and W take equal times; that also
/// excludes deadlock for any times. The schedule is validated.
std::vector<StageSteps> add_messages(const Schedule& schedule);

/// Checks lists against the rules above: computes are the schedule's, every message has both sides,
/// in the same order on its channel, receives stand before and sends right after their computes,
/// and no slot is overwritten in use. Throws AgreedError that names the first fault.
void check_messages(const Schedule& schedule, const std::vector<StageSteps>& lists);

}  // namespace trireme::schedule
