// A model in any layout on the ranks of a communicator, with made-up batches: what the layout tests
// run and compare.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <mpi.h>

#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"

#include "support/batches.hpp"

namespace trireme::parallel::test {

struct LayoutCase {
  int tensor = 1, pipeline = 1, data = 1;
  int shard = 0;  // hybrid sharding: data ranks of a shard group; 0: all
  int zero = 0;
  bool reshard = true;
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  int virtual_stages = 1;
  int micro_batch = 1;
  int threads = 1;
  model::Recompute recompute = model::Recompute::none;
  int ranks() const { return tensor * pipeline * data; }
  std::string to_string() const {
    static constexpr const char* recomputes[] = {"none", "selective", "full"};
    return fmt::format(
        "tensor {} pipeline {} data {} zero {} shard {} reshard {} sequence {} {} x{} "
        "micro-batch {} threads {} recompute {}",
        tensor, pipeline, data, zero, shard, reshard, sequence_parallel, schedule, virtual_stages,
        micro_batch, threads, recomputes[static_cast<int>(recompute)]);
  }
};

struct RunSettings {
  int steps = 10;
  int global_batch = 8;
  bool reproducible = true;
  int virtual_tensor = 8, virtual_data = 8;
};

/// What a run leaves: the same on all its ranks.
struct RunResult {
  std::vector<double> losses, norms;
  std::vector<std::string> names;             // of logical tensors
  std::vector<std::vector<float>> tensors;    // parameters, then each of the optimiser's states
  std::vector<std::vector<float>> gradients;  // of the first step
  double evaluation = 0;
};

/// Every logical tensor of values that lie as `flat` does (whole, or own shards), on every rank.
inline std::vector<std::vector<float>> gather_logical(const Replica& replica, const Tensor& flat,
                                                      bool sharded, MPI_Comm world) {
  const Stage& stage = replica.stage();
  const params::Layout& layout = stage.layout();
  const Place& place = stage.options().place;
  std::vector<std::vector<float>> result;
  for (const params::Parameter& row : layout.table().rows()) {
    result.emplace_back(static_cast<std::size_t>(row.shape.elements()), 0.0F);
  }
  // Whole state: data rank 0 speaks. Sharded: the first shard group.
  const bool speaks = sharded ? place.data_rank < place.shard : place.data_rank == 0;
  std::vector<params::FlatRange> ranges{{{0, layout.elements()}, 0}};
  if (sharded) ranges = stage.shards().own_ranges();
  for (const params::Group& group : layout.groups()) {
    if (!speaks || !layout.has_unit(group.units.front())) continue;
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
      if (block.slices.empty() && stage.shares().tiles.first > 0) continue;
      const auto owned = layout.owned(block);
      layout.for_each_run(block, [&](const params::Run& run) {
        for (std::int64_t i = 0; i < run.elements; ++i) {
          const std::int64_t local = run.local + i, at = block.offset + local;
          const bool own = std::any_of(owned.begin(), owned.end(), [&](const params::Range& r) {
            return local >= r.begin && local < r.end;
          });
          if (!own) continue;
          for (const params::FlatRange& range : ranges) {
            if (at < range.elements.begin || at >= range.elements.end) continue;
            result[static_cast<std::size_t>(block.row)][static_cast<std::size_t>(run.logical + i)] =
                flat.as<float>()[range.offset + at - range.elements.begin];
          }
        }
      });
    }
  }
  for (auto& tensor : result) {
    MPI_Allreduce(MPI_IN_PLACE, tensor.data(), static_cast<int>(tensor.size()), MPI_FLOAT, MPI_SUM,
                  world);
  }
  return result;
}

/// Micro-batches of one data rank in step `step`. Weights differ from sequence to sequence, so that
/// a mean of means would be wrong.
inline std::vector<HostMicrobatch> make_batches(const model::ModelConfig& config,
                                                const LayoutCase& layout, int data_rank,
                                                std::int64_t step, int global_batch) {
  std::vector<HostMicrobatch> out;
  const std::int64_t per_rank = global_batch / layout.data;
  for (std::int64_t m = 0; m < per_rank; m += layout.micro_batch) {
    const std::int64_t first = step * global_batch + data_rank * per_rank + m;
    data::Batch batch = testing_support::make_test_batch(first, layout.micro_batch, config.sequence,
                                                         config.vocabulary);
    for (std::size_t i = 0; i < batch.weights.size(); ++i) {
      const std::int64_t sample = first + static_cast<std::int64_t>(i) / config.sequence;
      batch.weights[i] = static_cast<float>(sample % 3) + 0.5F;
    }
    out.emplace_back(std::move(batch));
  }
  return out;
}

inline StageOptions stage_options(const LayoutCase& layout, const RunSettings& settings) {
  return {.place = {},
          .schedule = layout.schedule,
          .schedule_text = {},
          .virtual_stages = layout.virtual_stages,
          .micro_batches = settings.global_batch / layout.data / layout.micro_batch,
          .sequences = layout.micro_batch,
          .train = true,
          .zero = layout.zero,
          .reshard_after_forward = layout.reshard,
          .sequence_parallel = layout.sequence_parallel,
          .recompute = layout.recompute,
          .reproducible = settings.reproducible,
          .virtual_tensor = settings.virtual_tensor,
          .virtual_data = settings.virtual_data};
}

/// One rank of a model in some layout on the ranks of `comm`; collective over them.
struct LayoutRun {
  LayoutRun(const model::ModelConfig& config, const LayoutCase& layout,
            const StageOptions& stage_options, MPI_Comm comm)
      : comm(comm),
        layout(layout),
        session(comm),
        shape(comm::make_grid_shape(
            session.size(),
            {.tensor = layout.tensor, .pipeline = layout.pipeline, .data = layout.data})),
        grid(session, shape, ledger, comm::shard_degree(shape, layout.shard)),
        model(config),
        replica(model,
                {.stage = stage_options,
                 .optim = {.learning_rate = 3e-3},
                 .threads = layout.threads,
                 .bucket_elements = 1000,
                 .overlap = true,
                 .seed = 7},
                grid, recorder, ledger) {}

  /// The gradients that the last step left, every logical tensor of them.
  std::vector<std::vector<float>> gradients() {
    const state::ModelState& state = replica.state();
    const bool sharded = layout.zero > 0;
    if (!sharded || state.gradients_sharded()) {
      return gather_logical(replica, state.gradients(), sharded, comm);
    }
    // Own gradients are the rank's part of the whole buffer.
    device::MemoryLedger own_ledger;
    const device::Buffer own(own_ledger, device::Use::batch,
                             static_cast<std::size_t>(state.shards().elements()) * sizeof(float));
    const Tensor flat = own.view(DType::f32, {state.shards().elements()});
    for (int g = 0; g < state.shards().groups(); ++g) {
      const Tensor part = state.own_gradient(g);
      std::copy_n(part.as<float>(), part.elements(), flat.as<float>() + state.shards().offset(g));
    }
    return gather_logical(replica, flat, true, comm);
  }

  MPI_Comm comm;
  LayoutCase layout;
  comm::Session session;
  device::MemoryLedger ledger;
  Recorder recorder;
  comm::GridShape shape;
  comm::Grid grid;
  model::Transformer model;
  Replica replica;
};

/// Trains on the ranks of `comm`, as many as the layout has; collective over them.
inline RunResult run_layout(const model::ModelConfig& config, const LayoutCase& layout,
                            const RunSettings& settings, MPI_Comm comm) {
  LayoutRun run(config, layout, stage_options(layout, settings), comm);
  Replica& replica = run.replica;
  replica.initialise();
  RunResult result;
  const int data_rank = run.grid.coordinate(comm::Axis::data);
  for (int step = 0; step < settings.steps; ++step) {
    const auto batches = make_batches(config, layout, data_rank, step, settings.global_batch);
    result.losses.push_back(replica.backward(batches).mean());
    result.norms.push_back(replica.gradient_norm());
    if (step == 0) result.gradients = run.gradients();
    replica.update(3e-3, step, optim::clip_factor(result.norms.back(), 1.0));
  }
  for (const params::Parameter& row : run.model.table().rows()) result.names.push_back(row.name);
  result.tensors = gather_logical(replica, replica.state().parameters(),
                                  replica.state().parameters_sharded(), comm);
  for (const auto& state : replica.optimizer().states()) {
    for (auto& tensor : gather_logical(replica, state.flat, layout.zero > 0, comm)) {
      result.tensors.push_back(std::move(tensor));
    }
    for (const params::Parameter& row : run.model.table().rows()) {
      result.names.push_back(state.name + "/" + row.name);
    }
  }
  return result;
}

}  // namespace trireme::parallel::test
