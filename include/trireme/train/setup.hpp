// What train, evaluate and generate check and build before they start, each part from those before
// it; how a run ends; evaluation and generation, which are collective over the session.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/config.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/train/compute_device.hpp"
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

/// The model on windows of `sequence` tokens; 0: of as many as it was trained on last. Throws
/// ConfigError where learned positions do not reach so far.
model::ModelConfig with_sequence(model::ModelConfig model, std::int64_t sequence);
/// A warning where `sequence` is beyond what rotary positions were trained on; else empty.
std::string sequence_warning(const model::ModelConfig& trained, std::int64_t sequence);

/// The model that train.from names, of the run's own newest checkpoint where it began with that:
/// the source may be gone by then. Throws Error.
model::ModelConfig start_model(const RunConfig& config);
/// Makes the first checkpoint of the run folder from train.from, if that is set and the folder has
/// none. Returns a warning for the user, or "". Collective over the session; throws AgreedError,
/// also where the folder has checkpoints of a run that began otherwise.
std::string make_start(const RunConfig& config, comm::Session& session);

/// What a layout depends on beside the configuration: the machine and files.
struct LayoutFacts {
  int world = 1;              // ranks, parameter servers among them
  std::vector<int> node_of;   // as comm::Session::nodes(); empty: all on one node
  std::string schedule_text;  // of the file that parallel.schedule names
  bool host = true;           // computes on CPUs
  bool planned = false;       // see parallel::StageOptions
};
/// Reads the schedule file, if there is one; throws Error. Computes on CPUs unless `config` names
/// GPUs.
LayoutFacts layout_facts(const RunConfig& config, const comm::Session& session);

/// The world's last ranks that are parameter servers: parallel.servers, where the method has any.
int server_ranks(const RunConfig& config);
/// Whether servers update for each worker separately. With server.max_staleness = 0 they wait for
/// all workers.
bool waits_for_none(const RunConfig& config);
/// The configuration without parameter servers: all ranks read the model.
RunConfig without_servers(RunConfig config);

/// The grid's shape, of all ranks but servers. Throws ConfigError.
comm::GridShape grid_shape(const RunConfig& config, const LayoutFacts& facts);

/// Whether each replica is an independent worker (ReplicaOptions::alone).
bool trains_alone(const RunConfig& config);

/// What a worker's work space depends on where it computes by the CUDA backend.
plan::CudaWork cuda_work(const RunConfig& config);
comm::GridOptions grid_options(const RunConfig& config);

struct GridPlan {
  LayoutFacts facts;
  comm::GridShape shape;
};
/// Collective over the session, which has all ranks; errors are agreed on.
GridPlan plan_grid(const RunConfig& config, comm::Session& session, bool host);

/// What a rank of that layout does, but for its place; `config` is validated. `train` false:
/// forward only, micro-batches of `sequences`.
parallel::StageOptions stage_options(const RunConfig& config, const comm::GridShape& shape,
                                     const LayoutFacts& facts);
parallel::StageOptions forward_options(const RunConfig& config, std::int64_t sequences);
/// What a rank of `threads` threads is made of to train as that stage, but for what belongs to the
/// run alone: operations, watchdog, method.
parallel::ReplicaOptions replica_options(const RunConfig& config,
                                         const parallel::StageOptions& stage, int threads);

std::int64_t bucket_elements(const RunConfig& config);

/// Versions of Trireme and of the libraries that a run's numbers depend on.
nlohmann::json versions();

/// Checks everything that can be known before memory is taken, and fills in what is derived; throws
/// ConfigError. Needs `config.data.path` for the vocabulary. Of the dataset's shards, rank `rank`
/// of `ranks` checks its part.
void validate(RunConfig& config, const LayoutFacts& facts, int rank = 0, int ranks = 1);
/// The part of validate that the grid's number of ranks depends on: data_parallel.method and what
/// it cannot be combined with.
void check_method(const RunConfig& config, const LayoutFacts& facts);
/// The same as far as no dataset is needed: model, batch and layout.
void validate_layout(RunConfig& config, const LayoutFacts& facts);

/// How a run ended without an error. done: all steps. requeue: it saved before its last step, on a
/// signal or at a time limit, and must be started again. cut_off: this rank lost the others, which
/// may continue without it (server.tolerate_failures).
enum class Ending : std::uint8_t { done, requeue, cut_off };
/// Exit codes: 0 for done, 75 for requeue (EX_TEMPFAIL of sysexits.h), 1 for cut off.
constexpr int exit_code(Ending ending) {
  constexpr int codes[] = {0, 75, 1};
  return codes[static_cast<std::size_t>(ending)];
}

struct EvaluateOptions {
  std::filesystem::path checkpoint;  // a step folder, or a run folder whose newest is taken
  std::string split = "valid";       // valid | train
  std::int64_t sequence = 0;         // tokens of a window; 0: the checkpoint's
  bool json = false;                 // print it as JSON
};
/// Prints and returns the mean loss over a split. Model, precision and dataset are the
/// checkpoint's, the latter unless `config.data.path` is set; document mask, samples, micro-batch
/// and layout are those of `config`. Throws Error for a split without a whole window, AgreedError
/// where the loss is not finite.
double evaluate(comm::Session& session, const RunConfig& config, const EvaluateOptions& options);

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a step folder, or a run folder whose newest is taken
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;
  std::int64_t seed = 1;
  std::int64_t sequence = 0;  // tokens that the model sees; 0: the checkpoint's
};
/// Prints the prompt and its continuation on rank 0 as it is made; returns the text.
std::string generate(comm::Session& session, const RunConfig& config,
                     const GenerateOptions& options);

/// Draws a token from `logits` [V]: the likeliest for temperature 0; else from softmax(logits /
/// temperature) among the `top_k` likeliest (0: all) and of those the fewest whose probabilities
/// reach `top_p` (Holtzman et al., 2020). `u` is uniform on (0, 1).
std::int64_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k,
                          double top_p, double u);

}  // namespace trireme::train
