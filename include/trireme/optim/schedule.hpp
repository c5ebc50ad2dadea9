// The learning rate of each step.
#pragma once

#include <cstdint>

#include "trireme/optim/config.hpp"

namespace trireme::optim {

/// Learning rate of update number `step` (from 0) of `total`. Warm-up is linear from peak /
/// warmup_steps. After it: constant; linear or cosine (Loshchilov and Hutter, "SGDR", 2017) down to
/// final_learning_rate·peak over decay_steps; or wsd, constant and then linear over the last
/// decay_steps (Hu et al., "MiniCPM", 2024).
double learning_rate(const OptimConfig& config, std::int64_t step, std::int64_t total);

}  // namespace trireme::optim
