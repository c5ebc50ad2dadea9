// Runs a step's micro-batches through the units of a stage, and reduces the gradients over the data
// axis while backward still runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/arena.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/microbatch.hpp"
#include "trireme/state/buckets.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::parallel {

/// Sums over one or more micro-batches.
struct LossSum {
  double loss = 0;    // Σ weight·nll
  double weight = 0;  // Σ weight
  double mean() const { return loss / weight; }
};

struct EngineOptions {
  std::int64_t max_rows = 0;  // tokens of the largest micro-batch
  bool train = true;          // false: forward only, no gradients
  std::int64_t bucket_elements = 2 << 20;
  bool overlap = true;
  std::uint64_t seed = 0;  // of dropout
};

class Engine {
 public:
  Engine(const model::Transformer& model, const state::ModelState& state, ops::Ops& ops,
         comm::Communicator& data_group, Recorder& recorder, device::MemoryLedger& ledger,
         const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// Forward and backward of all micro-batches of this rank. Afterwards the state's gradients are
  /// those of the mean loss over the global batch, the same bits on every rank. Returns the sums
  /// over the global batch.
  LossSum step(const std::vector<HostMicrobatch>& batches);
  /// Forward alone; sums over this rank's micro-batch only.
  LossSum evaluate(const HostMicrobatch& batch);

  /// logits [R, V] of every token of the micro-batch, R·V fp32: for comparison with other programs.
  void logits(const HostMicrobatch& batch, const Tensor& logits);

  const model::StageLayout& layout() const { return layout_; }
  std::size_t stash_high_water() const { return stash_.high_water(); }
  std::size_t workspace_high_water() const { return workspace_.high_water(); }

 private:
  model::UnitContext context(const HostMicrobatch& batch, model::Mode mode, double denominator,
                             double* loss);
  Tensor output(int unit, std::int64_t rows);  // what unit `unit` puts out
  void forward(const model::UnitContext& context, int units);
  void backward(const model::UnitContext& context, bool last);
  void reduce_after(int unit);

  const model::Transformer& model_;
  const state::ModelState& state_;
  ops::Ops& ops_;
  comm::Communicator& group_;
  Recorder& recorder_;
  EngineOptions options_;
  model::StageLayout layout_;
  device::Arena stash_, workspace_;
  std::vector<model::UnitMemory> memory_;  // by unit
  std::vector<state::Bucket> buckets_;
  std::size_t next_bucket_ = 0;
  std::vector<device::Event> pending_;
  device::Stream stream_;  // communication
  std::unique_ptr<comm::Progress> progress_;
};

}  // namespace trireme::parallel
