// What train, evaluate and generate build before they start, each part from those before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

/// Threads of this rank: parallel.threads, else OMP_NUM_THREADS, else the cores that it may use
/// over the ranks that may use them.
int threads_of_rank(const parallel::ParallelConfig& config, const comm::Session& session);

/// The most memory this process ever had resident, in bytes; 0 where the system does not report it.
std::int64_t resident_peak();

/// Sequences of one forward on a rank that has `per_rank` in a step: the largest divisor whose
/// tokens stay within about 4,096.
std::int64_t choose_micro_batch(std::int64_t per_rank, std::int64_t sequence);

/// The step folder that `path` names: itself, or the newest one of a run folder. Throws Error. For
/// one rank, which sends it to the others (comm::of_rank_zero): the newest may change meanwhile.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// data.path of the configuration, or else of a checkpoint. Throws Error where neither names one.
std::string dataset_of(const RunConfig& config, const checkpoint::State& state);

/// The model section of a checkpoint, resolved. Throws Error unless the checkpoint has the tensors
/// of that model: what is made from it needs no more memory than the checkpoint accounts for.
model::ModelConfig model_of(const checkpoint::Reader& reader);

/// What a layout depends on beside the configuration: the machine and files.
struct LayoutFacts {
  int world = 1;              // ranks, parameter servers among them
  std::vector<int> node_of;   // as comm::Session::nodes(); empty: all on one node
  std::string schedule_text;  // of the file that parallel.schedule names
  bool host = true;           // computes on CPUs
};
/// Reads the schedule file, if there is one; throws Error. Computes on CPUs unless `config` names
/// GPUs.
LayoutFacts layout_facts(const RunConfig& config, const comm::Session& session);

/// The world's last ranks that are parameter servers: parallel.servers, where the method has any.
int server_ranks(const RunConfig& config);
/// Whether servers update for each worker by itself. With a staleness of 0 nobody may be ahead of
/// anybody, and the servers wait for all.
bool waits_for_none(const RunConfig& config);
/// The same configuration for one who only reads a model, on all ranks.
RunConfig without_servers(RunConfig config);

/// The grid's shape, of all ranks but servers, and the data ranks that share state. Throws
/// ConfigError.
comm::GridShape grid_shape(const RunConfig& config, const LayoutFacts& facts);
int shard_ranks(const RunConfig& config, const comm::GridShape& shape, const LayoutFacts& facts);

/// Whether each replica is an independent worker (ReplicaOptions::alone).
bool trains_alone(const RunConfig& config);

/// What a worker's work space depends on where it computes by the CUDA backend.
plan::CudaWork cuda_work(const RunConfig& config);
/// What carries the messages of a run's grid.
comm::GridOptions grid_options(const RunConfig& config);

/// The grid of a run.
struct GridPlan {
  LayoutFacts facts;
  comm::GridShape shape;
  int shard = 1;
};
/// Collective over the session, which has all ranks; errors are agreed on.
GridPlan plan_grid(const RunConfig& config, comm::Session& session, bool host);

/// What a rank of that layout does, but for its place; `config` is validated. `train` false:
/// forward only, micro-batches of `sequences`.
parallel::StageOptions stage_options(const RunConfig& config, const comm::GridShape& shape,
                                     const LayoutFacts& facts);
parallel::StageOptions forward_options(const RunConfig& config, std::int64_t sequences);

std::int64_t bucket_elements(const RunConfig& config);

/// Sums over the first `samples` windows (0: all) of a split; collective over the grid, whose data
/// ranks share out the windows. The same bits in every layout in reproducible mode. `watchdog`,
/// where there is one, gets a beat in every round.
parallel::LossSum evaluate_split(parallel::Replica& replica, data::TokenReader& reader,
                                 std::int64_t samples, bool document_mask,
                                 comm::Communicator& data_group,
                                 comm::Watchdog* watchdog = nullptr);

/// The files of a checkpoint, by checkpoint.files, where the ranks of `writers` write it.
checkpoint::FileLayout file_layout(const RunConfig& config, const comm::Session& writers);

/// Versions of Trireme and of the libraries that a run's numbers depend on.
nlohmann::json versions();

}  // namespace trireme::train
