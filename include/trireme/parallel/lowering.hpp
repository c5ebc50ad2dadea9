// From a stage's schedule to unit actions: the list that the engine walks, and that memory
// prediction reads. Pure. Places gathers and reductions; schedule::add_messages placed messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/params/layout.hpp"
#include "trireme/schedule/messages.hpp"

namespace trireme::parallel {

struct UnitAction {
  enum class Kind : std::uint8_t {
    receive,      // start to fill receive slot `slot`
    send,         // start to send from send slot `slot`
    gather,       // start to gather `group`'s parameters
    reduce,       // this rank has added all of `group`'s gradient: start to reduce it
    reduce_tied,  // the same of a weight that another stage holds too
    forward,      // of `unit`, as the others below
    backward,     // recomputation and both parts, call by call
    recompute,    // what forward did not keep, where backward is split
    backward_input,
    backward_weight
  };
  Kind kind = Kind::forward;
  int micro_batch = -1;
  int chunk = -1;
  int unit = -1;     // counted in the whole model
  int stash = -1;    // which of the chunk's stash slots the micro-batch has
  int pending = -1;  // which of the chunk's slots between I and W it has; −1: backward is whole
  int group = -1;    // of parameters
  int peer = -1;     // stage
  int slot = -1;     // of messages
  bool gradient = false;  // of messages
  /// First unit of a compute: the receive slot its input is in; last one: the send slot its output
  /// goes to. −1: none.
  int input_slot = -1, output_slot = -1;

  bool is_compute() const;
  /// Whether it is its micro-batch's last contribution to the unit's gradients.
  bool ends_gradients() const { return kind == Kind::backward || kind == Kind::backward_weight; }
  /// Whether its unit adds to gradients. `last_unit` of the model does so in forward too.
  bool adds_to_gradients(int last_unit) const {
    return ends_gradients() || (kind == Kind::forward && unit == last_unit);
  }
};

std::string to_string(const UnitAction& action);

struct LoweringOptions {
  std::vector<params::Range> chunk_units;  // of this stage, by chunk
  bool recompute = false;                  // selective or full: an action before a split backward
  bool gathers = false;                    // parameters are sharded
  bool reshard_after_forward = true;       // gather again for backward
  bool reduces_each_micro_batch = false;   // gradients are sharded
  std::vector<int> gather_buffers;         // by group; see state::GroupBuffers
};

struct Program {
  std::vector<UnitAction> actions;
  std::vector<int> stash_slots;    // by chunk
  std::vector<int> pending_slots;  // by chunk; 0: backward is never split
  int receive_activation_slots = 0, receive_gradient_slots = 0;
  int send_activation_slots = 0, send_gradient_slots = 0;
};

/// The program of one stage whose parameters `layout` describes.
Program lower(const schedule::StageSteps& steps, const params::Layout& layout,
              const LoweringOptions& options);

}  // namespace trireme::parallel
