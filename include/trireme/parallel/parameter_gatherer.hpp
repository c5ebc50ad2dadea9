// All-gathers of sharded parameters: group by group before they are read (ZeRO 3), or all after an
// update (ZeRO 1 and 2).
#pragma once

#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::parallel {

class ParameterGatherer {
 public:
  /// `shard`: the ranks among which state is sharded. `stream`: of all collectives of parameters
  /// and gradients. All outlive it.
  ParameterGatherer(const state::ModelState& state, comm::Communicator& shard, Recorder& recorder,
                    device::Stream& stream);

  /// Starts to gather a group's parameters into its buffer.
  void gather(int group);
  /// Waits until the parameters of a unit are gathered.
  void wait(int unit);
  /// After an update of own shards: gathers what is kept whole. What ZeRO 3 gathered is stale.
  void gather_updated();

 private:
  struct Gathered {
    int group = -1;
    device::Event ready;
  };
  device::Event start(int group);
  Gathered& buffer_of(int group);

  const state::ModelState& state_;
  comm::Communicator& shard_;
  Recorder& recorder_;
  device::Stream& stream_;
  std::vector<Gathered> buffers_;  // see ModelState::gather_buffers
};

}  // namespace trireme::parallel
