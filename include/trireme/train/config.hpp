// The configuration of a run.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/checkpoint/config.hpp"
#include "trireme/comm/config.hpp"
#include "trireme/core/config.hpp"
#include "trireme/data/config.hpp"
#include "trireme/device/config.hpp"
#include "trireme/model/config.hpp"
#include "trireme/optim/config.hpp"
#include "trireme/parallel/config.hpp"
#include "trireme/report/config.hpp"

namespace trireme::train {

constexpr std::int64_t most_sequences = std::int64_t{1} << 30;  // of a global batch

struct TrainConfig {
  std::string output = "run";     // run folder: attempts and checkpoints
  std::string from;               // where the model and its weights begin; empty: new ones
  std::int64_t steps = 1000;      // last step, counted from the beginning of training
  std::int64_t stop_after = 0;    // steps of this start; 0: no limit
  std::int64_t batch = 32;        // sequences of a global batch
  std::int64_t batch_tokens = 0;  // the same in tokens; 0: use batch
  std::int64_t micro_batch = 0;   // sequences of a rank's forward; 0: see choose_micro_batch
  std::int64_t seed = 1;
  std::int64_t evaluate_every = 0;    // steps; 0: only at the end
  std::int64_t evaluate_samples = 0;  // validation sequences; 0: the whole split
  bool evaluate_at_end = true;
  std::int64_t log_every = 10;  // steps between lines in a log
  std::string progress = "auto";
  bool quiet = false;
  std::string peak = "measured";               // measured | none | GFLOP/s of one rank
  std::string predict = "off";                 // off | quick | a machine file
  std::string check = "none";                  // none | placement
  std::int64_t check_every = 1;                // steps
  double watchdog = 300;                       // seconds; 0: none
  std::string signals = "INT,TERM,USR1,USR2";  // that end the run with a checkpoint
  std::string time_limit = "none";             // of this start, as parse_duration reads it
  double time_margin = 60;                     // seconds before a limit, besides a step and a save
  std::int64_t skip_limit = 3;  // steps in a row that are skipped before the run stops
  std::string inject = "none";  // see parse_faults
  double outlier = 0;           // standard deviations; 0: none
  bool trace = false;           // operations of the device in trace.json

  void declare(config::Fields& fields) {
    fields.add("output", output, "run folder, for the record and the checkpoints");
    fields.add("from", from,
               "run folder, step folder or folder of a transformers model whose model and weights "
               "a new run begins with, at step 0");
    fields.add("steps", steps, "optimizer steps, counted from the beginning of training",
               config::at_least(1));
    fields.add("stop_after", stop_after, "steps of this start, then save and end; 0: no limit",
               config::at_least(0));
    fields.add("batch", batch, "sequences in a global batch, whatever the number of ranks",
               config::in_range(1, most_sequences));
    fields.add("batch_tokens", batch_tokens, "tokens in a global batch; 0: see batch",
               config::at_least(0));
    fields.add("micro_batch", micro_batch, "sequences of one forward on a rank; 0: chosen",
               config::in_range(0, most_sequences));
    fields.add("seed", seed, "seed of weights, dropout and sample order", config::at_least(0));
    fields.add("evaluate_every", evaluate_every,
               "steps between evaluations; 0: none before the end", config::at_least(0));
    fields.add("evaluate_samples", evaluate_samples,
               "validation sequences of an evaluation; 0: all", config::at_least(0));
    fields.add("evaluate_at_end", evaluate_at_end, "evaluate after the last step");
    fields.add("log_every", log_every, "steps between two lines in a log", config::at_least(1));
    fields.add("progress", progress,
               "step line rewritten in place (live) or lines every log_every steps (log); auto: "
               "live on a terminal",
               config::one_of({"auto", "live", "log"}));
    fields.add("quiet", quiet, "print only warnings and errors");
    fields.add("peak", peak, "peak that MFU refers to: measured, none, or GFLOP/s of one rank");
    fields.add("predict", predict,
               "machine file by which a step's time is predicted and then compared with the "
               "measured one; quick: measure this machine at the start; off: no prediction");
    fields.add("check", check, "placement: compare by hash whatever ranks hold as replicas",
               config::one_of({"none", "placement"}));
    fields.add("check_every", check_every, "steps between two checks", config::at_least(1));
    fields.add("signals", signals,
               "signals on which the run saves and ends with exit code 75, a second INT at once; "
               "none: leave them alone");
    fields.add("time_limit", time_limit,
               "time of this start after which it saves and ends with exit code 75: seconds, M:S, "
               "H:M:S or D-H:M:S; none");
    fields.add("time_margin", time_margin,
               "seconds that must be left before time_limit, or the end of a Slurm job, besides a "
               "step and a save",
               config::non_negative());
    fields.add(
        "skip_limit", skip_limit,
        "steps in a row whose loss or gradient norm is not finite, or an outlier, after which "
        "the run stops; their updates are skipped",
        config::at_least(1));
    fields.add("inject", inject,
               "faults made on purpose, for tests: nan@STEP, inf@STEP, spike@STEP, flip@STEP or "
               "slow@FACTOR (all steps), each perhaps with /RANK");
    fields.add("outlier", outlier,
               "skip updates whose loss or gradient norm is so many standard deviations above the "
               "last 128; 0: none",
               config::non_negative());
    fields.add("trace", trace,
               "put every operation of the device into trace.json, beside the host's sections");
    fields.add("watchdog", watchdog,
               "seconds of silence of a rank after which the job ends, with the last operations of "
               "the ranks of its node; 0: never",
               config::non_negative());
  }
};

using config::select;

/// All of `text` as a number of at least 0; nothing where it is none.
template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

/// How the data axis becomes one model: docs/data-parallel-methods.md.
struct DataParallelConfig {
  std::string method = "allreduce";
  std::string gradients = "fp32";  // as data ranks, or workers to servers, send them

  void declare(config::Fields& fields) {
    fields.add("method", method,
               "allreduce (with zero 0 to 3); server: parameter servers that wait for all workers; "
               "async-server: parameter servers that wait for no worker; average: independent "
               "workers whose weights are averaged periodically",
               config::one_of({"allreduce", "server", "async-server", "average"}));
    fields.add(
        "gradients", gradients,
        "type of the gradients that data ranks, or workers to parameter servers, send: fp32, "
        "or bf16 for half the bytes; they are added in fp32",
        config::one_of({"fp32", "bf16"}));
  }
};

/// Parameter servers: Li et al., "Scaling Distributed Machine Learning with the Parameter Server"
/// (2014); bounded staleness: Ho et al., "More Effective Distributed ML via a Stale Synchronous
/// Parallel Parameter Server" (2013).
struct ServerConfig {
  std::int64_t max_staleness = 8;  // shares of batches; async-server
  std::string staleness_rate = "none";
  bool tolerate_failures = false;
  double heartbeat = 10;  // seconds

  void declare(config::Fields& fields) {
    fields.add("max_staleness", max_staleness,
               "async-server: a worker waits while it is more than this many shares of batches "
               "ahead of the slowest; 0: as server",
               config::at_least(0));
    fields.add(
        "staleness_rate", staleness_rate,
        "async-server: learning rate of an update whose gradient is s updates old: none (the "
        "same) or inverse (1 / (1 + s) of it)",
        config::one_of({"none", "inverse"}));
    fields.add("tolerate_failures", tolerate_failures,
               "async-server: continue without workers that die; needs Open MPI's mpirun "
               "--enable-recovery, or srun with SLURM_KILL_BAD_EXIT=0");
    fields.add("heartbeat", heartbeat,
               "async-server: seconds of silence after which a worker counts as dead",
               config::positive());
  }
};

/// Periodic averaging: McMahan et al., "Communication-Efficient Learning of Deep Networks from
/// Decentralized Data" (2017); with an outer optimizer: Douillard et al., "DiLoCo" (2023).
struct AverageConfig {
  std::int64_t every = 16;
  std::int64_t per_epoch = 0;  // 0: see every
  std::string optimizer_state = "keep";
  std::string outer = "none";
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;

  /// What an average does to the workers' optimizer states.
  enum class States : std::uint8_t { keep, average, reset };
  States states() const {
    return select<States>(
        "average.optimizer_state", optimizer_state,
        {{"keep", States::keep}, {"average", States::average}, {"reset", States::reset}});
  }
  bool has_outer() const {
    return select<bool>("average.outer", outer, {{"none", false}, {"nesterov", true}});
  }

  void declare(config::Fields& fields) {
    fields.add("every", every, "steps that workers train independently between two averages",
               config::at_least(1));
    fields.add("per_epoch", per_epoch, "averages in each pass over the data; 0: see every",
               config::at_least(0));
    fields.add("optimizer_state", optimizer_state,
               "what an average does to the workers' optimizer state: keep (each its own), average "
               "or reset",
               config::one_of({"keep", "average", "reset"}));
    fields.add(
        "outer", outer,
        "optimizer of the averages: none (the average is the new model) or nesterov (DiLoCo: "
        "the average's distance from the last model is its gradient)",
        config::one_of({"none", "nesterov"}));
    fields.add("outer_learning_rate", outer_learning_rate, "of the outer optimizer",
               config::positive());
    fields.add("outer_momentum", outer_momentum, "of the outer optimizer",
               config::in_range(0.0, 1.0));
  }
};

/// All sections. Declared in one place, so that every subcommand knows the same keys.
struct RunConfig {
  model::ModelConfig model;
  data::DataConfig data;
  TrainConfig train;
  optim::OptimConfig optim;
  parallel::ParallelConfig parallel;
  parallel::ZeroConfig zero;
  parallel::ContextConfig context;
  DataParallelConfig data_parallel;
  ServerConfig server;
  AverageConfig average;
  parallel::NumericsConfig numerics;
  parallel::PrecisionConfig precision;
  device::DeviceConfig device;
  comm::CommConfig comm;
  checkpoint::CheckpointConfig checkpoint;
  report::ReportConfig report;

  void declare(config::Fields& fields) {
    fields.section("model", model);
    fields.section("data", data);
    fields.section("train", train);
    fields.section("optim", optim);
    fields.section("parallel", parallel);
    fields.section("zero", zero);
    fields.section("context", context);
    fields.section("data_parallel", data_parallel);
    fields.section("server", server);
    fields.section("average", average);
    fields.section("numerics", numerics);
    fields.section("precision", precision);
    fields.section("device", device);
    fields.section("comm", comm);
    fields.section("checkpoint", checkpoint);
    fields.section("report", report);
  }
};

}  // namespace trireme::train
