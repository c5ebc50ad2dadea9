// Optimizers over flat ranges of parameters.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/config.hpp"

namespace trireme::optim {

/// The factor that brings `norm` down to `clip`; 1 where clip is 0 or the norm does not exceed it.
double clip_factor(double norm, double clip);

/// A flat range that is updated under one rule.
struct UpdateRange {
  Tensor parameters, gradients;  // [n]
  Tensor rounded;                // [n], what units read of the parameters; absent: themselves
  std::int64_t offset = 0;       // of its state in the optimizer's buffers
  bool decay = false;
  ops::ElementIndices indices;  // in the whole model, for stochastic rounding
};

/// How what units read is rounded: to nearest, or to bf16 stochastically by the bits of (seed,
/// updates so far, index of the element).
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

/// AdamW, or SGD with momentum. State: as many flat fp32 buffers as the method keeps.
class Optimizer {
 public:
  /// `elements`: of each buffer. `offloaded`: its state lies in host memory, and it is given ranges
  /// there and the operations of the CPU.
  Optimizer(const OptimConfig& config, std::int64_t elements, device::MemoryLedger& ledger,
            bool offloaded = false, const Rounding& rounding = {});
  /// Update number `step` (from 0). `gradient_scale` multiplies the gradients as they are read.
  void update(ops::Ops& ops, std::span<const UpdateRange> ranges, double learning_rate,
              std::int64_t step, double gradient_scale);
  /// What update number `updates` − 1 makes for units to read of the range's parameters.
  void round(ops::Ops& ops, const UpdateRange& range, std::int64_t updates) const;

  struct State {
    std::string name;  // "adamw.moment1"
    Tensor flat;       // [elements]
  };
  const std::vector<State>& states() const { return states_; }
  /// Buffers that `config` keeps.
  static std::vector<std::string> state_names(const OptimConfig& config);

 private:
  OptimConfig config_;
  Rounding rounding_;
  device::Buffer buffer_;
  std::vector<State> states_;
};

}  // namespace trireme::optim
