#include "trireme/parallel/engine.hpp"

namespace trireme::parallel {

ParameterGatherer::ParameterGatherer(const state::ModelState& state, comm::Communicator& shard,
                                     Recorder& recorder, device::Stream& stream)
    : state_(state),
      shard_(shard),
      recorder_(recorder),
      stream_(stream),
      buffers_(static_cast<std::size_t>(state.gather_buffers().count)) {}

ParameterGatherer::Gathered& ParameterGatherer::buffer_of(int group) {
  const int buffer = state_.gather_buffers().buffer[static_cast<std::size_t>(group)];
  return buffers_[static_cast<std::size_t>(buffer)];
}

device::Event ParameterGatherer::start(int group) {
  return shard_.all_gather_v(state_.group_values(group), state_.own_values(group),
                             state_.shards().counts(group), stream_);
}

void ParameterGatherer::gather(int group) {
  Gathered& buffer = buffer_of(group);
  buffer.group = group;
  buffer.ready = start(group);
}

void ParameterGatherer::wait(int unit) {
  if (!state_.values_sharded()) return;
  const Section section(recorder_, "wait for shards");
  for (int g : state_.layout().groups_of(unit)) {
    const Gathered& buffer = buffer_of(g);
    TRIREME_ASSERT(buffer.group == g, "unit {} reads group {} where {} is", unit, g, buffer.group);
    buffer.ready.wait();
  }
}

void ParameterGatherer::gather_updated() {
  for (Gathered& buffer : buffers_) buffer.group = -1;
  if (!state_.options().optimizer_sharded() || state_.values_sharded()) return;
  const Section section(recorder_, "gather parameters");
  std::vector<device::Event> gathers;
  for (int g = 0; g < state_.shards().groups(); ++g) gathers.push_back(start(g));
  for (const device::Event& gather : gathers) gather.wait();
}

}  // namespace trireme::parallel
