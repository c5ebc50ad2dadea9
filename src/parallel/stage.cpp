#include "trireme/parallel/stage.hpp"

#include <algorithm>
#include <bit>

#include "trireme/model/tensor_parallel.hpp"

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

/// The steps of forward alone, for evaluation and generation.
schedule::StageSteps forward_only(schedule::StageSteps steps) {
  std::erase_if(steps.steps, [](const schedule::Step& step) {
    return step.action.kind != schedule::Kind::forward;
  });
  steps.receive_gradient_slots = steps.send_gradient_slots = 0;
  return steps;
}

std::vector<params::Range> chunks_of(const Pipeline& pipeline, const StageOptions& options) {
  std::vector<params::Range> chunks;
  for (int chunk = 0; chunk < options.virtual_stages; ++chunk) {
    const auto k =
        static_cast<std::size_t>(chunk) * static_cast<std::size_t>(options.place.pipeline) +
        static_cast<std::size_t>(options.place.stage);
    chunks.push_back({pipeline.bounds[k], pipeline.bounds[k + 1]});
  }
  return chunks;
}

bool power_of_two(std::int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n));
}

/// "8", or "4 or 8" where the powers of two around `value` differ; at least `least`.
std::string powers_near(std::int64_t value, std::int64_t least) {
  const auto below =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max(value, least))));
  if (below < least) return std::to_string(2 * below);
  return below == value ? std::to_string(below) : fmt::format("{} or {}", below, 2 * below);
}

/// `degree`, the value of `key`, divides `virtual_degree`, a power of two.
void check_virtual(const std::string& key, std::int64_t degree, const std::string& virtual_key,
                   std::int64_t virtual_degree) {
  if (!power_of_two(virtual_degree)) {
    throw ConfigError(virtual_key, std::to_string(virtual_degree), "must be a power of two",
                      fmt::format("use {}", powers_near(virtual_degree, 1)));
  }
  if (virtual_degree % degree == 0) return;
  const std::string rule =
      fmt::format("must divide {} = {} with numerics.reproducible", virtual_key, virtual_degree);
  if (power_of_two(degree)) {
    throw ConfigError(
        key, std::to_string(degree), rule,
        fmt::format("use at most {}, or {} = {}", virtual_degree, virtual_key, degree));
  }
  const auto near = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(degree)));
  throw ConfigError(key, std::to_string(degree), rule,
                    fmt::format("use {}", std::min(near, virtual_degree)));
}

void check_sequences(const StageOptions& options) {
  const std::int64_t own = options.micro_batches * options.sequences;
  const std::int64_t batch = own * options.place.data_degree(), groups = options.virtual_data;
  if (batch % groups == 0) return;
  // Both the batch's largest power of two and the next larger batch would do.
  const std::int64_t largest = batch & -batch;
  std::string mend = fmt::format("use a train.batch of {}", (batch / groups + 1) * groups);
  if (largest >= options.place.data_degree())
    mend += fmt::format(", or numerics.virtual_data = {}", largest);
  throw ConfigError("numerics.virtual_data", std::to_string(groups),
                    fmt::format("must divide the global batch of {} sequences with "
                                "numerics.reproducible",
                                batch),
                    mend);
}

/// Refuses degrees, schedules and batches that do not go together; throws ConfigError that names
/// the key, the rule and the nearest values that work. Whatever depends on the model too (units,
/// the schedule's own rules) is refused where it is worked out.
const StageOptions& checked(const StageOptions& options) {
  const Place& place = options.place;
  TRIREME_ASSERT(options.zero >= 0 && options.zero <= 3 && options.virtual_stages > 0 &&
                     options.sequences > 0 && place.shard > 0 && place.data % place.shard == 0,
                 "ZeRO {}, {} virtual stages, {} sequences, shards of {} of {} ranks", options.zero,
                 options.virtual_stages, options.sequences, place.shard, place.data);
  if (options.virtual_stages > 1 && place.pipeline == 1) {
    throw ConfigError("parallel.virtual_stages", std::to_string(options.virtual_stages),
                      "one pipeline stage has nothing to interleave with",
                      "use 1, or parallel.pipeline of at least 2");
  }
  if (!options.reproducible) return options;
  check_virtual("parallel.tensor", place.tensor, "numerics.virtual_tensor", options.virtual_tensor);
  check_virtual("parallel.data", place.data_degree(), "numerics.virtual_data",
                options.virtual_data);
  check_virtual("parallel.context", place.context, "numerics.virtual_context",
                options.virtual_context);
  if (options.train) check_sequences(options);
  return options;
}

/// Reproducible mode: the last unit adds to the loss and to its gradients in forward, so its
/// micro-batches must come in ascending order, as WeightOrder::ascending demands of weight parts.
void check_forward_order(const schedule::Schedule& schedule) {
  const int last = schedule.virtual_stages() - 1;
  int before = -1;
  for (const schedule::Action& action :
       schedule.actions[static_cast<std::size_t>(last % schedule.stages)]) {
    if (action.kind != schedule::Kind::forward || action.chunk != last / schedule.stages) continue;
    if (action.micro_batch < before) {
      throw ConfigError("parallel.schedule", schedule.name,
                        fmt::format("forward of micro-batch {} follows that of {} on the last "
                                    "virtual stage, which adds to sums in forward",
                                    action.micro_batch, before),
                        "put them in ascending order, or numerics.reproducible = false");
    }
    before = action.micro_batch;
  }
}

/// Reproducible mode has a block for each tile of each row; beyond this they fill memory.
void check_tiles(const model::Transformer& model, const StageOptions& options) {
  constexpr std::int64_t most = std::int64_t{1} << 19;
  const auto rows = static_cast<std::int64_t>(model.table().rows().size());
  if (!options.reproducible || rows * options.virtual_tensor <= most) return;
  throw ConfigError(
      "numerics.virtual_tensor", std::to_string(options.virtual_tensor),
      fmt::format("cuts {} tensors into more than {} tiles", rows, most),
      fmt::format("use at most {}", std::bit_floor(static_cast<std::uint64_t>(most / rows))));
}

/// What cut sequences cannot be.
void check_context(const model::ModelConfig& model, const StageOptions& options) {
  const model::ContextPart part = shares_of(options).context;
  if (!part.cuts()) return;
  const char* const key = options.reproducible ? "numerics.virtual_context" : "parallel.context";
  const std::int64_t unit = 2 * part.pairs;
  if (model.sequence % unit != 0) {
    throw ConfigError("model.sequence", std::to_string(model.sequence),
                      fmt::format("must divide by 2 x {}, {}", key, unit),
                      fmt::format("use {}", (model.sequence / unit + 1) * unit));
  }
  if (options.train && model.attention_dropout > 0) {
    throw ConfigError("model.attention_dropout", fmt::format("{}", model.attention_dropout),
                      fmt::format("must be 0 with {} = {}", key, part.pairs), "use 0");
  }
}

/// The most units that a stage has in all its chunks.
std::int64_t most_units(const std::vector<int>& bounds, int stages) {
  std::vector<std::int64_t> units(static_cast<std::size_t>(stages), 0);
  for (std::size_t k = 0; k + 1 < bounds.size(); ++k) {
    units[k % units.size()] += bounds[k + 1] - bounds[k];
  }
  return *std::ranges::max_element(units);
}

/// A stage's program has an action for each of its units and micro-batches. What no memory holds is
/// probably a typo. A plan makes the programs of all stages, and has to answer soon.
void check_length(const std::vector<int>& bounds, const StageOptions& options) {
  const std::int64_t most = std::int64_t{1} << (options.planned ? 18 : 20);
  const std::int64_t units =
      options.planned ? bounds.back() : most_units(bounds, options.place.pipeline);
  if (units * options.micro_batches <= most) return;
  throw ConfigError("micro-batches", std::to_string(options.micro_batches),
                    fmt::format("must be at most {} of a replica's step with {} {} units",
                                most / units, options.planned ? "a model of" : "a stage of", units),
                    "use larger and fewer micro-batches (train.micro_batch)");
}

}  // namespace

model::Shares shares_of(const StageOptions& options) {
  const Place& place = options.place;
  model::Shares shares;
  shares.tiles.all = options.reproducible ? options.virtual_tensor : place.tensor;
  shares.tiles.count = shares.tiles.all / place.tensor;
  shares.tiles.first = shares.tiles.count * place.tensor_rank;
  shares.kv_tiles = place.kv * shares.tiles.count;
  shares.context.pairs = options.reproducible ? options.virtual_context : place.context;
  shares.context.count = shares.context.pairs / place.context;
  shares.context.first = shares.context.count * place.context_rank;
  shares.ring = options.ring && place.context > 1;
  shares.sequence_parallel = options.sequence_parallel;
  shares.reproducible = options.reproducible;
  shares.compute = options.compute;
  shares.exact_gelu = options.exact_gelu;
  shares.products_on_gpu = options.products_on_gpu;
  shares.chunks = options.chunks;
  shares.recompute = options.train ? options.recompute : model::Recompute::none;
  return shares;
}

Place place_of(const comm::GridShape& shape, int rank, bool alone) {
  using comm::Axis;
  const auto at = shape.coordinates(rank);
  const auto coordinate = [&](Axis axis) { return at[static_cast<std::size_t>(axis)]; };
  const int context = shape.of(Axis::context), context_rank = coordinate(Axis::context);
  return {.tensor = shape.of(Axis::tensor),
          .pipeline = shape.of(Axis::pipeline),
          .data = alone ? context : shape.copies(),
          .shard = alone ? 1 : shape.shard_size(),
          .kv = shape.kv_size(),
          .tensor_rank = coordinate(Axis::tensor),
          .stage = coordinate(Axis::pipeline),
          .data_rank = (alone ? 0 : coordinate(Axis::data) * context) + context_rank,
          .context = context,
          .context_rank = context_rank};
}

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

Pipeline::Pipeline(const model::Transformer& model, const StageOptions& options)
    : bounds(schedule::split_units(model.unit_costs(),
                                   checked(options).place.pipeline * options.virtual_stages)) {
  check_tiles(model, options);
  check_context(model.config(), options);
  for (schedule::StageSteps& each : schedule::add_messages(single_schedule(options))) {
    forward.push_back(forward_only(std::move(each)));
  }
  if (!options.train) {
    steps = forward;
    return;
  }
  check_length(bounds, options);
  const schedule::Schedule schedule = schedule_of(options);
  if (options.reproducible) {
    schedule::validate(schedule, schedule::WeightOrder::ascending);
    check_forward_order(schedule);
  }
  steps = schedule::add_messages(schedule);
}

Stage::Stage(const model::Transformer& model, const StageOptions& options)
    : Stage(model, options, Pipeline(model, options)) {}

Stage::Stage(const model::Transformer& model, const StageOptions& options, const Pipeline& pipeline)
    : model_(model),
      options_(options),
      shares_(shares_of(options)),
      sets_(options.reproducible && options.train
                ? options.virtual_data / options.place.data_degree() * shares_.context.count
                : 1),
      chunks_(chunks_of(pipeline, options)),
      layout_(std::make_unique<params::Layout>(model.table(), chunks_, shares_.tiles)) {
  const Place& place = options.place;
  const bool shards = options.zero > 0;
  shards_ = std::make_unique<state::ShardMap>(*layout_, shards ? place.shard : 1,
                                              shards ? place.data_rank % place.shard : 0);
  lower_programs(pipeline);
  const model::ContextPart& part = shares_.context;
  const std::int64_t length = model.config().sequence / part.pairs;
  Leaves leaves{length * options.sequences, 1};
  if (options.reproducible) {
    const auto sequences = static_cast<int>(options.sequences);
    // All at once where their rows are neighbors; on GPUs not, since the bits of what libraries
    // compute there may depend on the number of sequences.
    const bool apart = part.cuts() || shares_.sequence_parallel || shares_.products_on_gpu;
    leaves = {length, sequences * part.count, apart ? 1 : sequences};
  }
  // Activations may alias one flat sum of gradients that is not read between two steps.
  const state::StateOptions state = state_options();
  const bool alias = options.train && sets_ == 1 && !state.gradients_sharded() && !state.offload;
  memory_ = std::make_unique<StagePlan>(model, chunks_, shares_, leaves, program_,
                                        alias ? layout_.get() : nullptr);
}

int Stage::set_of(int micro_batch, int leaf) const {
  // By groups of sequences, then by pairs of chunks.
  const int pairs = shares_.context.count;
  const int sequences = memory_->leaves().count / pairs, sequence = leaf / pairs;
  const int group =
      (micro_batch * sequences + sequence) * (sets_ / pairs) / (options_.micro_batches * sequences);
  return group * pairs + leaf % pairs;
}

int Stage::sets_of_call() const {
  const int calls = options_.micro_batches * memory_->leaves().calls();
  return sets_ % calls == 0 ? sets_ / calls : 1;
}

int Stage::joined_sets(const params::Parameter& row) const {
  return model::adds_up_leaves(row, shares_.tiles) ? sets_of_call() : 1;
}

void Stage::move_to(int data_rank) {
  options_.place.data_rank = data_rank;
  if (options_.zero > 0) {
    shards_ = std::make_unique<state::ShardMap>(shards_->of_rank(data_rank % options_.place.shard));
  }
}

void Stage::lower_programs(const Pipeline& pipeline) {
  const state::StateOptions state = state_options();
  LoweringOptions lowering{.chunk_units = chunks_,
                           .recompute = options_.recompute > model::Recompute::cheap,
                           .gathers = state.values_sharded(),
                           .reshard_after_forward = options_.reshard_after_forward,
                           .reduces_each_micro_batch = state.gradients_sharded()};
  if (lowering.gathers) {
    lowering.gather_buffers = state::plan_gather_buffers(*layout_, state).buffer;
  }
  const auto stage = static_cast<std::size_t>(options_.place.stage);
  forward_program_ = lower(pipeline.forward[stage], *layout_, lowering);
  if (!options_.train) {
    program_ = forward_program_;
    return;
  }
  program_ = lower(pipeline.steps[stage], *layout_, lowering);
  // Both programs use the same message buffers.
  program_.receive_activation_slots =
      std::max(program_.receive_activation_slots, forward_program_.receive_activation_slots);
  program_.send_activation_slots =
      std::max(program_.send_activation_slots, forward_program_.send_activation_slots);
}

}  // namespace trireme::parallel
