#include "trireme/parallel/stage.hpp"

#include <algorithm>

namespace trireme::parallel {

namespace {

schedule::Schedule schedule_of(const StageOptions& options) {
  if (const auto path = schedule::path_of(options.schedule)) {
    return schedule::parse_schedule(options.schedule_text, *path,
                                    {.stages = options.place.pipeline,
                                     .micro_batches = options.micro_batches,
                                     .chunks = options.virtual_stages});
  }
  return schedule::make_schedule(options.schedule, options.place.pipeline, options.micro_batches,
                                 options.virtual_stages);
}

/// Of one micro-batch, for forward alone.
schedule::Schedule single_schedule(const StageOptions& options) {
  return schedule::make_schedule(options.virtual_stages > 1 ? "interleaved" : "1f1b",
                                 options.place.pipeline, 1, options.virtual_stages);
}

std::vector<params::Range> chunks_of(const model::Transformer& model, const StageOptions& options) {
  const int stages = options.place.pipeline;
  const std::vector<int> bounds =
      schedule::split_units(model.unit_costs(), stages * options.virtual_stages);
  std::vector<params::Range> chunks;
  for (int chunk = 0; chunk < options.virtual_stages; ++chunk) {
    const auto k = static_cast<std::size_t>(chunk) * static_cast<std::size_t>(stages) +
                   static_cast<std::size_t>(options.place.stage);
    chunks.push_back({bounds[k], bounds[k + 1]});
  }
  return chunks;
}

const StageOptions& checked(const StageOptions& options) {
  check_layout(options);
  return options;
}

model::Shares shares_of(const StageOptions& options) {
  const Place& place = options.place;
  model::Shares shares;
  shares.tiles.all = options.reproducible ? options.virtual_tensor : place.tensor;
  shares.tiles.count = shares.tiles.all / place.tensor;
  shares.tiles.first = shares.tiles.count * place.tensor_rank;
  shares.sequence_parallel = options.sequence_parallel;
  shares.reproducible = options.reproducible;
  shares.compute = options.compute;
  shares.exact_gelu = options.exact_gelu;
  shares.recompute = options.train ? options.recompute : model::Recompute::none;
  return shares;
}

}  // namespace

model::Recompute usual_recompute(bool host, std::int64_t width) {
  constexpr std::int64_t wide = 512;
  return host && width >= wide ? model::Recompute::cheap : model::Recompute::none;
}

state::StateOptions Stage::state_options() const {
  const bool own = options_.train && options_.zero == 0 && !options_.offload && !options_.served;
  return {.train = options_.train,
          .zero = options_.zero,
          .shares = shares_,
          .sets = sets_,
          .keeps_gathered = !options_.reshard_after_forward,
          .offload = options_.offload,
          .served = options_.served,
          .reads_masters = options_.reads_masters && own};
}

Stage::Stage(const model::Transformer& model, const StageOptions& options)
    : model_(model),
      options_(checked(options)),
      shares_(shares_of(options)),
      sets_(options.reproducible && options.train ? options.virtual_data / options.place.data : 1),
      chunks_(chunks_of(model, options)),
      layout_(std::make_unique<params::Layout>(model.table(), chunks_, shares_.tiles)) {
  const Place& place = options.place;
  const bool shards = options.zero > 0;
  shards_ = std::make_unique<state::ShardMap>(*layout_, shards ? place.shard : 1,
                                              shards ? place.data_rank % place.shard : 0);
  lower_programs();
  const std::int64_t length = model.config().sequence;
  const Leaves leaves = options.reproducible ? Leaves{length, static_cast<int>(options.sequences)}
                                             : Leaves{length * options.sequences, 1};
  // Activations may alias one flat sum of gradients that is not read between two steps.
  const state::StateOptions state = state_options();
  const bool alias = options.train && sets_ == 1 && !state.gradients_sharded() && !state.offload;
  memory_ = std::make_unique<StagePlan>(model, chunks_, shares_, leaves, program_,
                                        alias ? layout_.get() : nullptr);
}

void Stage::lower_programs() {
  const state::StateOptions state = state_options();
  LoweringOptions lowering{.chunk_units = chunks_,
                           .recompute = options_.recompute > model::Recompute::cheap,
                           .gathers = state.values_sharded(),
                           .reshard_after_forward = options_.reshard_after_forward,
                           .reduces_each_micro_batch = state.gradients_sharded()};
  if (lowering.gathers) {
    lowering.gather_buffers = state::plan_gather_buffers(*layout_, state).buffer;
  }
  const auto steps_of = [&](const schedule::Schedule& schedule) {
    return schedule::add_messages(schedule)[static_cast<std::size_t>(options_.place.stage)];
  };
  forward_program_ = lower(forward_only(steps_of(single_schedule(options_))), *layout_, lowering);
  if (!options_.train) {
    program_ = forward_program_;
    return;
  }
  const schedule::Schedule schedule = schedule_of(options_);
  if (options_.reproducible) {
    schedule::validate(schedule, schedule::WeightOrder::ascending);
    check_forward_order(schedule);
  }
  program_ = lower(steps_of(schedule), *layout_, lowering);
  // Both programs use the same message buffers.
  program_.receive_activation_slots =
      std::max(program_.receive_activation_slots, forward_program_.receive_activation_slots);
  program_.send_activation_slots =
      std::max(program_.send_activation_slots, forward_program_.send_activation_slots);
}

}  // namespace trireme::parallel
