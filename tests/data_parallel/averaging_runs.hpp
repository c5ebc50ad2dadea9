// Runs whose workers train independently and average, and the same made by hand: single-rank
// replicas one after the other in one process, whose weights are averaged in a few lines.
#pragma once

#include <functional>
#include <memory>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/optim/optimizer.hpp"

#include "train/runs.hpp"

namespace trireme::train::test {

/// How the ranks of a test are laid out.
struct WorkerCase {
  int workers = 1, tensor = 1, pipeline = 1;
  int ranks() const { return workers * tensor * pipeline; }
  std::string to_string() const {
    return fmt::format("{} workers of tensor {} x pipeline {}", workers, tensor, pipeline);
  }
};

/// Layouts that fit the available ranks.
inline std::vector<WorkerCase> worker_cases() {
  const int ranks = world_size();
  std::vector<WorkerCase> cases{{.workers = ranks}};
  if (ranks == 4) cases.push_back({.workers = 2, .tensor = 2});
  if (ranks == 4) cases.push_back({.workers = 2, .pipeline = 2});
  return cases;
}

/// small_config for workers that average every third step.
inline RunConfig average_config(const Folder& folder, const std::string& name,
                                const WorkerCase& layout) {
  RunConfig config = small_config(folder, name);
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline = layout.pipeline;
  config.data_parallel.method = "average";
  config.average.every = 3;
  return config;
}

/// Where a run held other memory than predicted; empty: nowhere.
inline std::string memory_fault(const fs::path& run) {
  std::string fault;
  const nlohmann::json summary = summary_of(run);
  for (const auto& [use, bytes] : summary.at("memory").items()) {
    if (bytes.at("predicted") != bytes.at("measured")) fault += use + " " + bytes.dump() + " ";
  }
  return fault;
}

/// One worker, on this rank only.
class HandWorker {
 public:
  HandWorker(RunConfig config, int number, int workers)
      : config_(alone(std::move(config), workers)),
        session_(MPI_COMM_SELF),
        facts_{.world = 1, .node_of = {0}},
        shape_(grid_shape(config_, facts_)),
        grid_(session_, shape_, ledger_),
        dataset_(data::Dataset::open(config_.data.path)),
        model_(config_.model),
        replica_(model_,
                 {.stage = stage_options(config_, shape_, facts_),
                  .optim = config_.optim,
                  .bucket_elements = bucket_elements(config_),
                  .seed = static_cast<std::uint64_t>(config_.train.seed),
                  .stochastic_rounding = config_.precision.rounding == "stochastic"},
                 grid_, recorder_, ledger_) {
    reader_ = dataset_.reader(data::SplitName::train);
    const data::Sampler sampler(
        reader_->tokens(), config_.model.sequence, config_.data.group_mb * (1 << 20) / 2,
        static_cast<std::uint64_t>(config_.train.seed), config_.data.shuffle);
    loader_ =
        std::make_unique<data::Loader>(data::windows_of(*reader_, sampler),
                                       data::LoaderOptions{.micro_batch = config_.train.micro_batch,
                                                           .length = config_.model.sequence},
                                       config_.train.batch * workers, number, workers, 0);
    replica_.initialize();
  }
  /// One step; `lost` skips the update.
  parallel::StepSums step(std::int64_t number, std::int64_t states_age, bool lost) {
    std::vector<parallel::HostMicrobatch> batches;
    for (std::int64_t i = 0; i < config_.train.batch / config_.train.micro_batch; ++i) {
      batches.emplace_back(loader_->next());
    }
    const parallel::StepSums sums = replica_.backward(batches);
    const double rate = optim::learning_rate(config_.optim, number, config_.train.steps);
    if (!lost) {
      replica_.update(rate, states_age, optim::clip_factor(sums.gradient_norm, config_.optim.clip));
    }
    return sums;
  }
  /// Prepares the units' copies of parameters for that step.
  void read(std::int64_t steps) { replica_.refresh(steps); }
  float* parameters() { return replica_.state().parameters().as<float>(); }
  float* state(std::size_t which) { return replica_.optimizer().states()[which].flat.as<float>(); }
  std::size_t states() const { return replica_.optimizer().states().size(); }
  std::int64_t elements() const { return replica_.stage().layout().elements(); }
  /// This worker's part of a checkpoint of all workers; `parameters` are saved once.
  void append_to(std::vector<checkpoint::Piece>& pieces, const std::string& prefix,
                 bool parameters) {
    if (parameters) {
      checkpoint::append_pieces(pieces, "parameters", replica_.state(),
                                replica_.state().parameters(), false, {});
    }
    for (const auto& kept : replica_.optimizer().states()) {
      checkpoint::append_pieces(pieces, prefix + kept.name, replica_.state(), kept.flat, false, {});
    }
  }
  comm::Communicator& world() { return grid_.world(); }

 private:
  static RunConfig alone(RunConfig config, int workers) {
    config.data_parallel.method = "allreduce";
    config.parallel.tensor = config.parallel.pipeline = 1;
    config.train.batch /= workers;
    validate(config, {.world = 1, .node_of = {0}});
    return config;
  }
  RunConfig config_;
  device::MemoryLedger ledger_;
  comm::Session session_;
  LayoutFacts facts_;
  comm::GridShape shape_;
  comm::Grid grid_;
  Recorder recorder_;
  data::Dataset dataset_;
  model::Transformer model_;
  parallel::Replica replica_;
  std::unique_ptr<data::TokenReader> reader_;
  std::unique_ptr<data::Loader> loader_;
};

/// What the workers of a run made by hand found in a step.
struct HandStep {
  double loss = 0, gradient_norm = 0;
};

/// Whether a worker's update of a step (from 1) is skipped.
using Lost = std::function<bool(int worker, std::int64_t step)>;

/// Trains by `config`, without an outer optimizer, and writes the last checkpoint into
/// `output`. On one rank.
inline std::vector<HandStep> train_by_hand(const RunConfig& config, int workers,
                                           const fs::path& output, const Lost& lost) {
  std::vector<std::unique_ptr<HandWorker>> all;
  for (int w = 0; w < workers; ++w) {
    all.push_back(std::make_unique<HandWorker>(config, w, workers));
  }
  const auto average = [&](const std::function<float*(HandWorker&)>& values) {
    for (std::int64_t i = 0; i < all.front()->elements(); ++i) {
      std::vector<float> terms;
      for (auto& worker : all) terms.push_back(values(*worker)[i]);
      for (std::size_t n = terms.size(); n > 1; n = (n + 1) / 2) {  // neighbors, then pairs, …
        for (std::size_t k = 0; k < n / 2; ++k) terms[k] = terms[2 * k] + terms[2 * k + 1];
        if (n % 2 == 1) terms[n / 2] = terms[n - 1];
      }
      const float mean = terms[0] * (1.0F / static_cast<float>(workers));
      for (auto& worker : all) values(*worker)[i] = mean;
    }
  };
  const std::string& states = config.average.optimizer_state;
  std::vector<HandStep> steps_found;
  std::int64_t age = 0;
  for (std::int64_t step = 1; step <= config.train.steps; ++step, ++age) {
    double loss = 0, weight = 0, norm = 0;
    for (int w = 0; w < workers; ++w) {
      const parallel::StepSums sums =
          all[static_cast<std::size_t>(w)]->step(step - 1, age, lost && lost(w, step));
      loss += sums.loss.loss;
      weight += sums.loss.weight;
      norm += sums.gradient_norm / workers;
    }
    steps_found.push_back({loss / weight, norm});
    if (step % config.average.every != 0 && step != config.train.steps) continue;
    average([](HandWorker& worker) { return worker.parameters(); });
    for (auto& worker : all) worker->read(step);
    for (std::size_t s = 0; s < all.front()->states(); ++s) {
      if (states == "average") average([s](HandWorker& worker) { return worker.state(s); });
      for (auto& worker : all) {
        if (states == "reset") std::fill_n(worker->state(s), worker->elements(), 0.0F);
      }
    }
    if (states == "reset") age = -1;
  }
  std::vector<checkpoint::Piece> pieces;
  all.front()->append_to(pieces, "", true);
  for (int w = 1; w < workers && states == "keep"; ++w) {
    all[static_cast<std::size_t>(w)]->append_to(pieces, fmt::format("worker-{}/", w), false);
  }
  const checkpoint::State state{.step = config.train.steps};
  checkpoint::save(output, state, pieces, all.front()->world());
  return steps_found;
}

/// Where the tensors of two checkpoints differ; empty: nowhere.
inline std::string tensor_difference(const fs::path& one, const fs::path& other) {
  const checkpoint::Reader a(one), b(other);
  if (a.tensors().size() != b.tensors().size()) {
    return fmt::format("{} tensors and {}", a.tensors().size(), b.tensors().size());
  }
  for (const checkpoint::Reader::Entry& tensor : a.tensors()) {
    const auto* theirs = b.find(tensor.name);
    if (theirs == nullptr || theirs->shape != tensor.shape) return tensor.name;
    if (values_of(a, tensor) != values_of(b, *theirs)) return "values of " + tensor.name;
  }
  return {};
}

}  // namespace trireme::train::test
