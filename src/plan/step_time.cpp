#include "trireme/plan/step_time.hpp"

namespace trireme::plan {

StageClasses trace_stages(const model::Transformer& model, const parallel::ReplicaOptions& options,
                          const comm::GridShape& shape, bool host, bool documents) {
  StageClasses result;
  constexpr auto axis = static_cast<std::size_t>(comm::Axis::pipeline);
  for (int stage = 0; stage < shape.of(comm::Axis::pipeline); ++stage) {
    std::array<int, comm::axis_count> place{};
    place[axis] = stage;
    const int rank = shape.rank(place);
    result.classes.push_back({rank, trace_step(model, options, shape, rank, host, documents)});
  }
  result.class_of = [shape](int rank) {
    return static_cast<std::size_t>(shape.coordinates(rank)[axis]);
  };
  return result;
}

StepTimes predict_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                       const comm::GridShape& shape, const Machine& machine, bool documents,
                       bool spans) {
  const StageClasses stages = trace_stages(model, options, shape, machine.on_host(), documents);
  return simulate(shape, stages.classes, stages.class_of, machine, spans);
}

}  // namespace trireme::plan
