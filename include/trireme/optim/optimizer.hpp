// Optimizers over flat ranges of parameters, and the learning rate of each step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/config.hpp"

namespace trireme::optim {

/// Learning rate of update number `step` (from 0) of `total`. Warm-up is linear from peak /
/// warmup_steps. Then: constant; linear or cosine (Loshchilov and Hutter, "SGDR", 2017) down to
/// final_learning_rate·peak over decay_steps; or wsd, constant and then linear over the last
/// decay_steps (Hu et al., "MiniCPM", 2024).
double learning_rate(const OptimConfig& config, std::int64_t step, std::int64_t total);

/// The factor that reduces `norm` to `clip`; 1 if clip is 0 or the norm does not exceed it.
double clip_factor(double norm, double clip);

/// A flat range that is updated under one rule.
struct UpdateRange {
  Tensor parameters, gradients;  // [n]
  Tensor rounded;                // [n], the copy that units read; absent: the parameters
  std::int64_t offset = 0;       // of its state in the optimizer's buffers
  bool decay = false;
  ops::ElementIndices indices;  // in the whole model, for stochastic rounding
};

/// Rounding of the copy that units read: to nearest, or stochastically to bf16 by random bits of
/// (seed, updates so far, index of the element).
struct Rounding {
  bool stochastic = false;
  std::uint64_t seed = 0;
  ops::RoundedCopy copy(const Tensor& values, const ops::ElementIndices& indices,
                        std::int64_t updates) const {
    return {values,
            stochastic,
            {seed, Purpose::rounding, static_cast<std::uint32_t>(updates)},
            indices};
  }
};

/// AdamW, or SGD with momentum. Its state is a flat fp32 buffer per moment.
class Optimizer {
 public:
  /// `elements`: of each buffer. `offloaded`: state and update ranges are in host memory, and
  /// `update` is given the CPU's operations.
  Optimizer(const OptimConfig& config, std::int64_t elements, device::MemoryLedger& ledger,
            bool offloaded = false, const Rounding& rounding = {});
  /// Update number `step` (from 0). `gradient_scale` multiplies the gradients as they are read.
  void update(ops::Ops& ops, std::span<const UpdateRange> ranges, double learning_rate,
              std::int64_t step, double gradient_scale);
  /// Recomputes the range's rounded copy as update number `updates` − 1 wrote it.
  void round(ops::Ops& ops, const UpdateRange& range, std::int64_t updates) const;

  struct State {
    std::string name;  // "adamw.moment1"
    Tensor flat;       // [elements]
  };
  const std::vector<State>& states() const { return states_; }
  /// Names of the buffers under `config`.
  static std::vector<std::string> state_names(const OptimConfig& config);

 private:
  OptimConfig config_;
  Rounding rounding_;
  device::Buffer buffer_;
  std::vector<State> states_;
};

}  // namespace trireme::optim
