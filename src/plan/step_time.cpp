#include "trireme/plan/step_time.hpp"

#include <array>
#include <map>
#include <utility>

#include "trireme/plan/ranks.hpp"

namespace trireme::plan {

namespace {

/// By tensor rank, the lowest one that does the same: with equal tiles, in a key/value group of
/// equal ranks.
std::vector<int> alike_tensor_ranks(const model::Transformer& model,
                                    const parallel::StageOptions& options,
                                    const comm::GridShape& shape) {
  const std::vector<int> equal = equal_tensor_ranks(model, options);
  const int kv = shape.kv_size();
  std::map<std::pair<int, std::vector<int>>, int> known;
  std::vector<int> alike;
  for (int rank = 0; rank < static_cast<int>(equal.size()); ++rank) {
    const auto group = equal.begin() + rank / kv * kv;
    alike.push_back(
        known.try_emplace({equal[static_cast<std::size_t>(rank)], {group, group + kv}}, rank)
            .first->second);
  }
  return alike;
}

}  // namespace

StageClasses trace_stages(const model::Transformer& model, const parallel::ReplicaOptions& options,
                          const comm::GridShape& shape, bool host, bool documents) {
  StageClasses result;
  parallel::StageOptions stage = options.stage;
  stage.place = parallel::place_of(shape, 0, options.alone);
  stage.planned = true;
  const parallel::Pipeline pipeline(model, stage);
  parallel::ReplicaOptions with_pipeline = options;
  with_pipeline.pipeline = &pipeline;
  const std::vector<int> alike = alike_tensor_ranks(model, stage, shape);
  const auto batches = parallel::blank_batches(stage.micro_batches, stage.sequences,
                                               model.config().sequence, documents);
  std::map<std::pair<int, int>, std::size_t> classes;  // by stage and lowest tensor rank alike
  for (int number = 0; number < shape.of(comm::Axis::pipeline); ++number) {
    for (const int tensor : alike) {
      if (!classes.try_emplace({number, tensor}, classes.size()).second) continue;
      std::array<int, comm::axis_count> place{};
      place[static_cast<std::size_t>(comm::Axis::tensor)] = tensor;
      place[static_cast<std::size_t>(comm::Axis::pipeline)] = number;
      const int rank = shape.rank(place);
      result.classes.push_back(
          {rank, trace_step(model, with_pipeline, shape, rank, host, batches)});
    }
  }
  result.class_of = [shape, alike, classes = std::move(classes)](int rank) {
    const auto at = shape.coordinates(rank);
    const auto tensor = static_cast<std::size_t>(at[static_cast<std::size_t>(comm::Axis::tensor)]);
    return classes.at({at[static_cast<std::size_t>(comm::Axis::pipeline)], alike[tensor]});
  };
  return result;
}

StepTimes predict_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                       const comm::GridShape& shape, const Machine& machine, bool documents) {
  const StageClasses stages = trace_stages(model, options, shape, machine.on_host(), documents);
  return simulate(shape, stages.classes, stages.class_of, machine);
}

}  // namespace trireme::plan
