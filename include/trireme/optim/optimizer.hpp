// Optimizers over flat ranges of parameters; the learning rate and the loss scale of each step.
#pragma once

#include <cstdint>
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
/// decay_steps (Hu et al., "MiniCPM", 2024). Update warmup_steps still has the peak, and from
/// update warmup_steps + decay_steps on the rate is final.
double learning_rate(const OptimConfig& config, std::int64_t step, std::int64_t total);

/// The factor that reduces `norm` to `clip`: clip / norm, or 1 if clip is 0 or the norm does not
/// exceed it. PyTorch divides by norm + 1e-6.
double clip_factor(double norm, double clip);

/// Loss scaling for fp16: the loss is multiplied by a factor, by which gradients are divided before
/// the update, so that small gradients do not underflow. Micikevicius et al., "Mixed precision
/// training" (2018), section 3.2. The factor is a power of two, so that it rounds nothing. It is
/// halved after a step whose gradients overflow and doubled after `patience` consecutive steps
/// without overflow.
class LossScale {
 public:
  static constexpr double first = 65536, least = 1, most = 16777216;
  static constexpr std::int64_t patience = 1000;

  /// Not `dynamic`: always 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? first : 1) {}
  bool dynamic() const { return dynamic_; }
  double value() const { return value_; }
  /// Whether gradients that overflow beside a finite loss mean that the factor is too large, not
  /// that training failed.
  bool may_shrink() const { return dynamic_ && value_ > least; }
  void note(bool overflowed);

  // For checkpoints. `restore` throws Error for an impossible state.
  std::int64_t steps_since_change() const { return steps_; }
  void restore(double value, std::int64_t steps_since_change);

 private:
  bool dynamic_;
  double value_;
  std::int64_t steps_ = 0;
};

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
  /// Update number `step` (from 0): AdamW's t is step + 1. Steps whose update was skipped count
  /// too. `gradient_scale` multiplies the gradients as they are read.
  void update(ops::Ops& ops, std::span<const UpdateRange> ranges, double learning_rate,
              std::int64_t step, double gradient_scale);
  /// Recomputes the range's rounded copy as update number `updates` − 1 wrote it.
  void round(ops::Ops& ops, const UpdateRange& range, std::int64_t updates) const;

  struct State {
    std::string name;  // "adamw.moment1"
    Tensor flat;       // [elements]
  };
  const std::vector<State>& states() const { return states_; }
  static std::vector<std::string> state_names(const OptimConfig& config);

 private:
  OptimConfig config_;
  Rounding rounding_;
  device::Buffer buffer_;
  std::vector<State> states_;
};

}  // namespace trireme::optim
