// A schedule's actions joined by the messages between stages: the list that an engine walks.
//
// How a list is walked. Steps start in list order. A start never blocks the list, except that
// - a compute first waits for the message in its `input_slot` and for the earlier send from its
//   `output_slot` (that slot is about to be written);
// - a receive first waits for the earlier compute that reads the same slot. That compute comes
//   earlier in the list, so the wait takes time only where computes run asynchronously.
// A send starts when the compute right before it has finished. All steps are done at the end.
//
// Channels. A stage sends activations to the next stage and gradients to the one before, both
// cyclic (the last stage's activations continue in the first stage's next chunk). For each ordered
// pair of stages there is one channel per direction, activation and gradient; messages of one
// channel start in the same order on both sides, and neither channel waits for another.
#pragma once

#include <algorithm>
#include <vector>

#include "trireme/schedule/schedule.hpp"

namespace trireme::schedule {

struct Step {
  enum class Kind { receive_activation, receive_gradient, compute, send_activation, send_gradient };
  Kind kind = Kind::compute;
  /// What is computed; of a message: this stage's action that needs it (receive) or made it (send).
  Action action;
  int peer_stage = -1;  // messages: the other side
  int slot = -1;        // messages: the buffer, of this stage, direction and side
  /// compute: where its input waits, a receive slot (a local one where there is one stage); −1: it
  /// needs none (first virtual stage's F, last one's B or I, any W).
  int input_slot = -1;
  /// compute: where it writes what the next virtual stage (F) or the one before (B, I) needs, a
  /// send slot (a local one where there is one stage); −1: it is not needed.
  int output_slot = -1;

  bool is_receive() const {
    return kind == Kind::receive_activation || kind == Kind::receive_gradient;
  }
  /// Of messages: whether it is a gradient; else an activation.
  bool is_gradient() const { return kind == Kind::receive_gradient || kind == Kind::send_gradient; }
  bool operator==(const Step&) const = default;
};

/// Numbers buffers of one sort. The lowest free number is taken.
class Slots {
 public:
  int take() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const auto slot = static_cast<std::size_t>(free - used_.begin());
    if (free == used_.end()) used_.push_back(true);
    used_[slot] = true;
    return static_cast<int>(slot);
  }
  void release(int slot) { used_[static_cast<std::size_t>(slot)] = false; }
  int count() const { return static_cast<int>(used_.size()); }  // the most in use at once

 private:
  std::vector<bool> used_;
};

/// One stage's list and how many buffers of each sort it needs. Activations and gradients of one
/// virtual stage boundary are equally large: [micro-batch's tokens, width], with sequence
/// parallelism this rank's rows of it.
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

/// The lists of all stages. A receive comes just before the compute that precedes the one that
/// needs it, or earlier where the sender's order requires it. Each direction has at least two send
/// slots, and so many that no compute waits for one when F, I and W take equal times. That also
/// excludes deadlock for any times. The schedule is validated.
std::vector<StageSteps> add_messages(const Schedule& schedule);

}  // namespace trireme::schedule
