// Optimisers over the flat buffers of a parameter table, and the global gradient norm.
#pragma once

#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/config.hpp"
#include "trireme/params/table.hpp"

namespace trireme::optim {

/// √Σ g² over every logical parameter once, in table order; the bits do not depend on threads.
double global_norm(ops::Ops& ops, const params::ParameterTable& table, const Tensor& gradients);

/// The factor that brings `norm` down to `clip`; 1 where clip is 0 or the norm does not exceed it.
double clip_factor(double norm, double clip);

/// AdamW, or SGD with momentum. State: as many flat fp32 buffers as the method keeps.
class Optimizer {
 public:
  Optimizer(const OptimConfig& config, const params::ParameterTable& table,
            device::MemoryLedger& ledger);
  /// Update number `step` (from 0). `gradient_scale` multiplies the gradients as they are read.
  void update(ops::Ops& ops, const Tensor& parameters, const Tensor& gradients,
              double learning_rate, std::int64_t step, double gradient_scale);

  struct State {
    std::string name;  // "adamw.moment1"
    Tensor flat;       // [flat_elements]
  };
  const std::vector<State>& states() const { return states_; }
  /// Buffers of flat_elements that `config` keeps.
  static std::vector<std::string> state_names(const OptimConfig& config);

 private:
  OptimConfig config_;
  const params::ParameterTable& table_;
  device::Buffer buffer_;
  std::vector<State> states_;
};

}  // namespace trireme::optim
