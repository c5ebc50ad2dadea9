#include "trireme/parallel/replica.hpp"

namespace trireme::parallel {

namespace {

StageOptions placed(StageOptions options, comm::Grid& grid) {
  options.place = place_of(grid);
  return options;
}

EngineGroups groups_of(comm::Grid& grid) {
  using comm::Axis;
  using comm::Direction;
  return {.tensor = grid.group(Axis::tensor),
          .state = {.data = grid.group(Axis::data),
                    .shard = grid.shard_group(),
                    .replica = grid.replica_group(),
                    .embedding = grid.embedding_group()},
          .pipeline = grid.group(Axis::pipeline),
          .activations = grid.pipeline_channel(Direction::activations),
          .gradients = grid.pipeline_channel(Direction::gradients)};
}

/// Gradients that all data ranks hold are read by all of them, each its share; those of shards by
/// the first shard group.
state::GradientNorm norm_of(const Stage& stage, const state::ModelState& state) {
  const Place& place = stage.options().place;
  const bool sharded = stage.options().zero > 0;
  if (sharded) {
    return state::GradientNorm(state, stage.shards(), place.data_rank < place.shard);
  }
  return state::GradientNorm(state, state::ShardMap(stage.layout(), place.data, place.data_rank),
                             true);
}

}  // namespace

Place place_of(comm::Grid& grid) {
  using comm::Axis;
  return {.tensor = grid.shape().of(Axis::tensor),
          .pipeline = grid.shape().of(Axis::pipeline),
          .data = grid.shape().of(Axis::data),
          .shard = grid.shard(),
          .tensor_rank = grid.coordinate(Axis::tensor),
          .stage = grid.coordinate(Axis::pipeline),
          .data_rank = grid.coordinate(Axis::data)};
}

Replica::Replica(const model::Transformer& model, const ReplicaOptions& options, comm::Grid& grid,
                 Recorder& recorder, device::MemoryLedger& ledger)
    : options_(options),
      grid_(grid),
      recorder_(recorder),
      ops_(ops::make_cpu_ops(options.threads, &ledger, options.stage.reproducible)),
      stage_(model, placed(options.stage, grid)),
      state_(stage_.layout(), stage_.shards(), stage_.state_options(), ledger),
      optimizer_(options.optim, options.stage.train ? stage_.shards().elements() : 0, ledger),
      engine_(stage_, state_, *ops_, groups_of(grid), recorder, ledger,
              {.bucket_elements = options.bucket_elements,
               .overlap = options.overlap,
               .seed = options.seed,
               .watchdog = options.watchdog}),
      norm_(norm_of(stage_, state_)),
      ranges_(options.stage.train ? state::update_ranges(state_)
                                  : std::vector<optim::UpdateRange>()) {}

void Replica::initialise() {
  if (!state_.parameters_sharded()) {
    params::initialise(stage_.layout(), options_.seed, state_.parameters());
    return;
  }
  params::initialise(stage_.layout(), options_.seed, stage_.shards().own_ranges(),
                     state_.parameters());
}

double Replica::gradient_norm() { return norm_.compute(*ops_, grid_.world(), norm_stream_); }

void Replica::update(double learning_rate, std::int64_t step, double gradient_scale) {
  optimizer_.update(*ops_, ranges_, learning_rate, step, gradient_scale);
  engine_.spread();
}

}  // namespace trireme::parallel
