// A model in any layout on the ranks of a communicator, with synthetic batches, for the layout
// tests.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <mpi.h>

#include "trireme/comm/grid.hpp"
#include "trireme/model/block.hpp"
#include "trireme/parallel/replica.hpp"

#include "support/batches.hpp"
#include "support/simulated_ops.hpp"

namespace trireme::parallel::test {

struct LayoutCase {
  int tensor = 1, pipeline = 1, data = 1;
  int shard = 0;  // hybrid sharding: data ranks of a shard group; 0: all
  int zero = 0;
  bool reshard = true;
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  std::string schedule_text;  // of schedule "file:…"
  int virtual_stages = 1;
  int micro_batch = 1;
  int threads = 1;
  model::Recompute recompute = model::Recompute::none;
  bool exact_gelu = true;
  bool alone = false;  // replicas train independently; shard = 1
  int context = 1;
  bool ring = false;
  int ranks() const { return tensor * context * pipeline * data; }
  std::string to_string() const {
    static constexpr const char* recomputes[] = {"none", "cheap", "selective", "full"};
    return fmt::format(
        "tensor {}{} pipeline {} data {} zero {} shard {} reshard {} sequence {} {} x{} "
        "micro-batch {} threads {} recompute {}{}",
        tensor, context > 1 ? fmt::format(" context {}{}", context, ring ? " ring" : "") : "",
        pipeline, data, zero, shard, reshard, sequence_parallel, schedule, virtual_stages,
        micro_batch, threads, recomputes[static_cast<int>(recompute)],
        exact_gelu ? "" : " GELU kept");
  }
};

/// A device other than the host, and its operations.
struct TestDevice {
  std::unique_ptr<device::Device> device;
  MakeOps make_ops;
};
using MakeTestDevice = std::function<TestDevice(int rank)>;

/// A simulated device: its memory is hidden from the host and its work is delayed.
inline TestDevice make_simulated_device(int rank) {
  auto device = std::make_unique<testing_support::SimulatedDevice>(static_cast<unsigned>(rank));
  testing_support::SimulatedDevice& own = *device;
  return {std::move(device), [&own](device::MemoryLedger& ledger, int threads, bool reproducible) {
            return std::make_unique<testing_support::SimulatedOps>(
                own, ops::make_cpu_ops(threads, &ledger, reproducible));
          }};
}

struct RunSettings {
  int steps = 10;
  int global_batch = 8;
  bool reproducible = true;
  int virtual_tensor = 8, virtual_data = 8, virtual_context = 1;
  bool documents = false;      // several in each sequence
  MakeTestDevice make_device;  // absent: the host
  DType compute = DType::f32;
  bool offload = false;
  double clip = 1;          // of the gradient norm
  bool stochastic = false;  // rounding of bf16 weights
  bool copies = false;      // bf16 weights beside masters, even on CPUs
  bool graphs = false;      // see ReplicaOptions
  DType sent_gradients = DType::f32;
};

/// Results of a run: the same on all its ranks, except `fault`.
struct RunResult {
  std::vector<double> losses, norms;
  /// By step, of each logical tensor: its gradient's hash, then its values' after the update.
  std::vector<std::vector<std::uint64_t>> hashes;
  std::vector<std::string> names;             // of logical tensors
  std::vector<std::vector<float>> tensors;    // parameters, then each of the optimizer's states
  std::vector<std::vector<float>> gradients;  // of the first step
  /// After the last step: per sequence in reproducible mode, else of all together.
  std::vector<double> evaluation;
  std::string fault;  // of this rank: memory that differs from the plan
};

/// FNV-1a of a tensor's bits.
inline std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211ULL;
  }
  return hash;
}

/// Every logical tensor of values laid out as `flat` (whole, or own shards) on `device`, on every
/// rank, bit for bit. Exactly one rank contributes each element.
inline std::vector<std::vector<float>> gather_logical(const Replica& replica,
                                                      device::Device& device, const Tensor& flat,
                                                      bool sharded, MPI_Comm world) {
  const Stage& stage = replica.stage();
  std::vector<float> values_here(static_cast<std::size_t>(flat.elements()));
  device::read(device, values_here.data(), flat);
  const params::Layout& layout = stage.layout();
  const Place& place = stage.options().place;
  const auto& rows = layout.table().rows();
  std::vector<std::int64_t> first{0};
  for (const params::Parameter& row : rows) first.push_back(first.back() + row.shape.elements());
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(first.back()), 0);
  std::vector<std::int64_t> given(rows.size(), 0);
  // Whole state: data rank 0 contributes. Sharded: the first shard group.
  const bool is_root = sharded ? place.data_rank < place.shard : place.data_rank == 0;
  std::vector<params::FlatRange> ranges{{{0, layout.elements()}, 0}};
  if (sharded) ranges = stage.shards().own_ranges();
  for (const params::Group& group : layout.groups()) {
    if (!is_root || !layout.has_unit(group.units.front())) continue;
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
            const auto row = static_cast<std::size_t>(block.row);
            bits[static_cast<std::size_t>(first[row] + run.logical + i)] =
                std::bit_cast<std::uint32_t>(values_here[static_cast<std::size_t>(
                    range.offset + at - range.elements.begin)]);
            ++given[row];
          }
        }
      });
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, bits.data(), static_cast<int>(bits.size()), MPI_UINT32_T, MPI_BOR,
                world);
  MPI_Allreduce(MPI_IN_PLACE, given.data(), static_cast<int>(given.size()), MPI_INT64_T, MPI_SUM,
                world);
  std::vector<std::vector<float>> result;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    TRIREME_ASSERT(given[row] == rows[row].shape.elements(), "{}: {} of {} elements",
                   rows[row].name, given[row], rows[row].shape.elements());
    std::vector<float>& values = result.emplace_back();
    for (std::int64_t i = first[row]; i < first[row + 1]; ++i) {
      values.push_back(std::bit_cast<float>(bits[static_cast<std::size_t>(i)]));
    }
  }
  return result;
}

/// Micro-batches of one data rank in step `step`. Weights differ between sequences, so that a mean
/// of means would be wrong.
inline std::vector<HostMicrobatch> make_batches(const model::ModelConfig& config,
                                                const LayoutCase& layout, int data_rank,
                                                std::int64_t step, int global_batch,
                                                bool documents = false) {
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
    if (documents) testing_support::divide_into_documents(batch);
    out.emplace_back(std::move(batch));
  }
  return out;
}

inline StageOptions stage_options(const LayoutCase& layout, const RunSettings& settings) {
  return {.place = {},
          .schedule = layout.schedule,
          .schedule_text = layout.schedule_text,
          .virtual_stages = layout.virtual_stages,
          .micro_batches = settings.global_batch / layout.data / layout.micro_batch,
          .sequences = layout.micro_batch,
          .train = true,
          .zero = layout.zero,
          .reshard_after_forward = layout.reshard,
          .offload = settings.offload,
          .sequence_parallel = layout.sequence_parallel,
          .recompute = layout.recompute,
          .exact_gelu = layout.exact_gelu && !settings.make_device,  // as in runs
          .products_on_gpu = static_cast<bool>(settings.make_device),
          .compute = settings.compute,
          .reads_masters = !settings.make_device && !settings.stochastic && !settings.copies,
          .sent_gradients = settings.sent_gradients,
          .reproducible = settings.reproducible,
          .virtual_tensor = settings.virtual_tensor,
          .virtual_data = settings.virtual_data,
          .virtual_context = settings.virtual_context,
          .ring = layout.ring};
}

/// As the program's train::grid_shape.
inline comm::GridShape shape_of(const model::ModelConfig& config, const LayoutCase& layout,
                                const StageOptions& options, int ranks) {
  comm::GridShape shape = comm::make_grid_shape(ranks, {.tensor = layout.tensor,
                                                        .context = layout.context,
                                                        .pipeline = layout.pipeline,
                                                        .data = layout.data});
  shape.shard = comm::shard_degree(shape, layout.shard);
  const int tensor = shape.of(comm::Axis::tensor);
  shape.kv = model::Attention::kv_ranks(
      config, tensor, options.reproducible ? options.virtual_tensor : tensor, options.reproducible);
  return shape;
}

/// One rank of a model in some layout on the ranks of `comm`; collective over them.
struct LayoutRun {
  LayoutRun(const model::ModelConfig& config, const LayoutCase& layout,
            const StageOptions& stage_options, MPI_Comm comm,
            const MakeTestDevice& make_device = {}, bool trace = false,
            const MakeMethod& make_method = {}, bool stochastic = false, bool graphs = false)
      : device(make_device ? make_device(comm_rank(comm)) : TestDevice()),
        ledger(device.device ? *device.device : device::host_device()),
        comm(comm),
        layout(layout),
        session(comm),
        shape(shape_of(config, layout, stage_options, session.size())),
        grid(session, shape, ledger),
        model(config),
        replica(model,
                replica_options(layout, stage_options, device.make_ops, trace, make_method,
                                stochastic, graphs),
                grid, recorder, ledger) {}

  /// The last step's gradients of every logical tensor.
  std::vector<std::vector<float>> gradients() {
    const state::ModelState& state = replica.state();
    const bool sharded = layout.zero > 0;
    if (!sharded || state.gradients_sharded()) {
      return gather_logical(replica, state.device(), state.gradients(), sharded, comm);
    }
    // Own gradients are the rank's part of the whole buffer.
    const device::Buffer own(ledger, device::Use::batch,
                             static_cast<std::size_t>(state.shards().elements()) * sizeof(float));
    const Tensor flat = own.view(DType::f32, {state.shards().elements()});
    for (int g = 0; g < state.shards().groups(); ++g) {
      const Tensor part = state.own_gradient(g);
      const std::int64_t first = state.shards().offset(g);
      replica.ops().copy(flat.slice(0, first, first + part.elements()), part);
    }
    return gather_logical(replica, state.device(), flat, true, comm);
  }

  static ReplicaOptions replica_options(const LayoutCase& layout, const StageOptions& stage_options,
                                        const MakeOps& make_ops, bool trace,
                                        const MakeMethod& make_method, bool stochastic,
                                        bool graphs) {
    ReplicaOptions options;
    options.stage = stage_options;
    options.optim.learning_rate = 3e-3;
    options.threads = layout.threads;
    options.bucket_elements = bucket_elements;
    options.seed = 7;
    options.make_ops = make_ops;
    options.trace = trace;
    options.alone = layout.alone;
    options.make_method = make_method;
    options.stochastic_rounding = stochastic;
    options.graphs = graphs;
    return options;
  }
  static constexpr std::int64_t bucket_elements = 1000;
  static int comm_rank(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
  }

  TestDevice device;
  device::MemoryLedger ledger;
  MPI_Comm comm;
  LayoutCase layout;
  comm::Session session;
  Recorder recorder;
  comm::GridShape shape;
  comm::Grid grid;
  model::Transformer model;
  Replica replica;
};

/// Where this rank's memory differs from the plan; empty: nowhere.
inline std::string memory_fault(LayoutRun& run) {
  const Stage& stage = run.replica.stage();
  const StageMemory& memory = run.replica.engine().memory();
  const state::StateOptions options = stage.state_options();
  std::string fault;
  const auto expect = [&](const char* what, auto found, auto planned) {
    if (static_cast<std::int64_t>(found) == static_cast<std::int64_t>(planned)) return;
    fault += fmt::format("rank {} of {}: {} bytes of {}, {} planned; ", run.session.rank(),
                         run.session.size(), found, what, planned);
  };
  expect("stash", memory.stash_high_water(), memory.plan().stash_bytes());
  expect("work", memory.work_high_water(), memory.plan().work_bytes());
  using device::Use;
  using state::ModelState;
  expect("parameters", run.ledger.held(Use::parameters),
         ModelState::bytes(stage.layout(), stage.shards(), options).parameters);
  expect("gradients", run.ledger.held(Use::gradients),
         ModelState::bytes(stage.layout(), stage.shards(), options).gradients);
  expect("gathered", run.ledger.held(Use::gathered),
         ModelState::bytes(stage.layout(), stage.shards(), options).gathered);
  const std::int64_t kept =
      ModelState::bytes(stage.layout(), stage.shards(), options).masters +
      2 * static_cast<std::int64_t>(sizeof(float)) * stage.shards().elements();
  const bool offload = options.offloaded();
  expect("optimizer state", run.ledger.held(Use::optimizer), offload ? 0 : kept);
  const std::int64_t staged =
      state::Offload::bytes(stage.shards(), options, LayoutRun::bucket_elements);
  expect("offloaded state", run.ledger.held(Use::offloaded), offload ? kept + staged : 0);
  return fault;
}

/// Where steps after the first were not launched as graphs although configured; empty: nowhere.
inline std::string graphs_fault(LayoutRun& run, const RunSettings& settings) {
  if (!settings.graphs) return {};
  const StepGraphs& graphs = run.replica.engine().graphs();
  const auto steps = static_cast<std::uint64_t>(settings.steps - 1);
  if (graphs.refusal().empty() && graphs.launched() == steps * graphs.captured() &&
      graphs.captured() > 0) {
    return {};
  }
  return fmt::format("rank {}: {} graphs launched {} times in {} steps; {}", run.session.rank(),
                     graphs.captured(), graphs.launched(), steps, graphs.refusal());
}

/// Losses of a batch by forward only, on every rank.
inline std::vector<double> evaluate(LayoutRun& run, const model::ModelConfig& config,
                                    const RunSettings& settings) {
  const int data_rank = run.grid.coordinate(comm::Axis::data);
  std::vector<double> own;
  for (const HostMicrobatch& batch : make_batches(config, run.layout, data_rank, settings.steps,
                                                  settings.global_batch, settings.documents)) {
    for (const LossSum& leaf : run.replica.engine().evaluate(batch)) own.push_back(leaf.loss);
  }
  // All ranks of a replica have the same; data ranks have neighboring sequences.
  const auto data = static_cast<std::size_t>(run.layout.data);
  std::vector<double> all(own.size() * data, 0.0);
  const bool is_root = run.grid.coordinate(comm::Axis::tensor) == 0 &&
                       run.grid.coordinate(comm::Axis::context) == 0 &&
                       run.grid.coordinate(comm::Axis::pipeline) == 0;
  const std::size_t first = own.size() * static_cast<std::size_t>(data_rank);
  if (is_root) std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(first));
  MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.size()), MPI_DOUBLE, MPI_SUM,
                run.comm);
  for (std::size_t i = 0; i < own.size(); ++i) {
    TRIREME_ASSERT(all[first + i] == own[i], "losses differ between ranks of a replica");
  }
  if (settings.reproducible) return all;
  return {std::accumulate(all.begin(), all.end(), 0.0)};
}

/// Trains on the ranks of `comm`, as many as the layout has; collective over them.
inline RunResult run_layout(const model::ModelConfig& config, const LayoutCase& layout,
                            const RunSettings& settings, MPI_Comm comm) {
  LayoutRun run(config, layout, stage_options(layout, settings), comm, settings.make_device, false,
                {}, settings.stochastic, settings.graphs);
  Replica& replica = run.replica;
  replica.initialize();
  RunResult result;
  const int data_rank = run.grid.coordinate(comm::Axis::data);
  device::Device& keeps = replica.state().optimizer_device();
  const auto parameters = [&] {
    return gather_logical(replica, keeps, replica.state().parameters(),
                          replica.state().parameters_sharded(), comm);
  };
  for (int step = 0; step < settings.steps; ++step) {
    const auto batches =
        make_batches(config, layout, data_rank, step, settings.global_batch, settings.documents);
    const StepSums sums = replica.backward(batches);
    result.losses.push_back(sums.loss.mean());
    result.norms.push_back(sums.gradient_norm);
    std::vector<std::uint64_t> hashes;
    if (step == 0 || settings.reproducible) {
      auto gradients = run.gradients();
      for (const auto& tensor : gradients) hashes.push_back(hash_of(tensor));
      if (step == 0) result.gradients = std::move(gradients);
    }
    replica.update(3e-3, step, optim::clip_factor(result.norms.back(), settings.clip));
    if (settings.reproducible) {
      for (const auto& tensor : parameters()) hashes.push_back(hash_of(tensor));
      result.hashes.push_back(std::move(hashes));
    }
  }
  for (const params::Parameter& row : run.model.table().rows()) result.names.push_back(row.name);
  result.tensors = parameters();
  for (const auto& state : replica.optimizer().states()) {
    for (auto& tensor : gather_logical(replica, keeps, state.flat, layout.zero > 0, comm)) {
      result.tensors.push_back(std::move(tensor));
    }
    for (const params::Parameter& row : run.model.table().rows()) {
      result.names.push_back(state.name + "/" + row.name);
    }
  }
  result.evaluation = evaluate(run, config, settings);
  result.fault = memory_fault(run) + graphs_fault(run, settings);
  return result;
}

/// Where two runs in reproducible mode first differ in bits: what, and in which step. Empty:
/// nowhere.
inline std::string first_difference(const RunResult& one, const RunResult& other) {
  const std::size_t rows = one.gradients.size();
  const auto element = [](const std::vector<float>& a, const std::vector<float>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
        return fmt::format("[{}]: {:.9g} and {:.9g}", i, a[i], b[i]);
      }
    }
    return std::string(" differs");
  };
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    if (one.losses[step] != other.losses[step]) {
      return fmt::format("step {}: loss {:.17g} and {:.17g}", step, one.losses[step],
                         other.losses[step]);
    }
    for (std::size_t t = 0; t < 2 * rows; ++t) {
      if (t == rows && one.norms[step] != other.norms[step]) {
        return fmt::format("step {}: gradient norm {:.17g} and {:.17g}", step, one.norms[step],
                           other.norms[step]);
      }
      if (one.hashes[step][t] == other.hashes[step][t]) continue;
      const std::string& name = one.names[t % rows];
      if (t >= rows) return fmt::format("step {}: updated {}", step, name);
      return fmt::format("step {}: gradient of {}{}", step, name,
                         step == 0 ? element(one.gradients[t], other.gradients[t]) : "");
    }
  }
  for (std::size_t t = 0; t < one.tensors.size(); ++t) {
    if (hash_of(one.tensors[t]) == hash_of(other.tensors[t])) continue;
    return fmt::format("at the end: {}{}", one.names[t], element(one.tensors[t], other.tensors[t]));
  }
  for (std::size_t i = 0; i < one.evaluation.size(); ++i) {
    if (one.evaluation[i] == other.evaluation[i]) continue;
    return fmt::format("evaluation of sequence {}: {:.17g} and {:.17g}", i, one.evaluation[i],
                       other.evaluation[i]);
  }
  return {};
}

}  // namespace trireme::parallel::test
