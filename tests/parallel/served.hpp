// Models for tests of parameter servers, cut at many places.
#pragma once

#include "trireme/model/transformer.hpp"
#include "trireme/parallel/server_shards.hpp"

namespace trireme::parallel::test {

/// Odd sizes; every group but the smallest ones has several blocks of the norm, so that each of
/// three servers holds something.
inline model::ModelConfig served_model(bool tied) {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 60;
  config.heads = 3;
  config.vocabulary = 211;
  config.sequence = 11;
  config.tied = tied;
  if (!tied) {
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.hidden = 94;
    config.bias = false;
  }
  config.resolve();
  return config;
}

inline StageOptions served_options(int workers, int global_batch, bool reproducible) {
  StageOptions options;
  options.place.data = options.place.shard = workers;
  options.micro_batches = global_batch / workers;
  options.served = true;
  options.reproducible = reproducible;
  return options;
}

inline optim::OptimConfig served_optimizer() {
  optim::OptimConfig optim;
  optim.learning_rate = 3e-3;
  return optim;
}

}  // namespace trireme::parallel::test
