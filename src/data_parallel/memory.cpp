#include "trireme/data_parallel/memory.hpp"

#include <algorithm>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data_parallel/averaging.hpp"
#include "trireme/data_parallel/server_link.hpp"

namespace trireme::data_parallel {

namespace {

using comm::GroupKind;

void add_average(plan::MemoryQuestion& question, const AverageConfig& config,
                 const parallel::Stage& stage) {
  const std::int64_t bucket = std::min(question.bucket_elements, stage.layout().elements());
  const auto bytes = static_cast<std::size_t>(bucket) * sizeof(float);
  question.alone = true;
  question.method = {
      .optimizer = Averaging::outer_bytes(config, stage.layout()),
      .communication = static_cast<std::int64_t>(plan::reduction_bytes(
          stage, question, GroupKind::data, question.shape.of(comm::Axis::data), bytes)),
      .saved_buffers = config.has_outer() ? 1 : 0,
      .own_states = config.states() == AverageConfig::States::keep};
}

/// The grid's world agrees on a step's end, and all ranks on the job's beginning and end.
void add_served(plan::MemoryQuestion& question, const train::RunConfig& config,
                const parallel::Stage& stage, const ServerPlace& place) {
  const std::size_t agreement = plan::reduction_bytes(stage, question, GroupKind::world,
                                                      question.shape.size(), plan::agreement_bytes);
  const std::size_t norms = question.host ? 1 : 2;  // the host reads a norm from staging memory
  const std::size_t own_norm = train::waits_for_none(config) ? norms * plan::norm_bytes(stage) : 0;
  question.snapshots = false;  // servers save what they hold
  question.method.communication =
      static_cast<std::int64_t>(agreement + own_norm +
                                comm::scratch_bytes(place.workers + place.servers, 0)) +
      ServerStaging::bytes(stage.state_options(), stage.layout(), place.gradients, question.host);
}

}  // namespace

void add_method_memory(plan::MemoryQuestion& question, const train::RunConfig& config,
                       const parallel::Stage& stage, const ServerPlace& place) {
  const std::string& method = config.data_parallel.method;
  if (method == "allreduce") return;
  if (method == "average") return add_average(question, config.average, stage);
  TRIREME_ASSERT(train::server_ranks(config) > 0, "data_parallel.method = {}", method);
  add_served(question, config, stage, place);
}

std::map<device::Use, std::int64_t> predict_server_memory(const parallel::Stage& worker,
                                                          const ServerPlace& place,
                                                          const train::RunConfig& config) {
  using device::Use;
  using state::ModelState;
  const params::Layout& layout = worker.layout();
  const state::ShardMap shards(layout, place.servers, place.index);
  const state::StateOptions options = ServerShards::state_options(worker);
  const auto states = static_cast<std::int64_t>(optim::Optimizer::state_names(config.optim).size());
  const std::size_t squares = plan::norm_bytes(worker);
  const std::size_t summed = train::waits_for_none(config) ? 0 : squares;
  return {{Use::parameters, ModelState::bytes(layout, shards, options).parameters},
          {Use::gradients, ModelState::bytes(layout, shards, options).gradients},
          {Use::optimizer, ModelState::bytes(layout, shards, options).masters +
                               states * shards.elements() * std::int64_t{sizeof(float)}},
          {Use::communication,
           ServerShards::slot_bytes(shards, place) +
               static_cast<std::int64_t>(squares + comm::scratch_bytes(place.servers, summed) +
                                         comm::scratch_bytes(place.workers + place.servers, 0))}};
}

}  // namespace trireme::data_parallel
