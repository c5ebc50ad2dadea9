#include "trireme/plan/step_time.hpp"

#include <array>
#include <map>
#include <utility>

#include "trireme/plan/ranks.hpp"

namespace trireme::plan {

StageClasses trace_stages(const model::Transformer& model, const parallel::ReplicaOptions& options,
                          const comm::GridShape& shape, bool host, bool documents) {
  StageClasses result;
  parallel::StageOptions stage = options.stage;
  stage.place = parallel::place_of(shape, 0, options.alone);
  const std::vector<int> equal = equal_tensor_ranks(model, stage);
  std::map<std::pair<int, int>, std::size_t> classes;  // by stage and lowest equal tensor rank
  for (int number = 0; number < shape.of(comm::Axis::pipeline); ++number) {
    for (const int tensor : equal) {
      if (!classes.try_emplace({number, tensor}, classes.size()).second) continue;
      std::array<int, comm::axis_count> place{};
      place[static_cast<std::size_t>(comm::Axis::tensor)] = tensor;
      place[static_cast<std::size_t>(comm::Axis::pipeline)] = number;
      const int rank = shape.rank(place);
      result.classes.push_back({rank, trace_step(model, options, shape, rank, host, documents)});
    }
  }
  result.class_of = [shape, equal, classes = std::move(classes)](int rank) {
    const auto at = shape.coordinates(rank);
    const auto tensor = static_cast<std::size_t>(at[static_cast<std::size_t>(comm::Axis::tensor)]);
    return classes.at({at[static_cast<std::size_t>(comm::Axis::pipeline)], equal[tensor]});
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
