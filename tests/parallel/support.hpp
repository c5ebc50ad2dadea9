// Helpers of the unit tests of this module.
#pragma once

#include "trireme/model/config.hpp"

namespace trireme::parallel::test {

/// A small GPT.
inline model::ModelConfig model_of(int layers, bool tied) {
  model::ModelConfig config;
  config.layers = layers;
  config.width = 32;
  config.heads = 2;
  config.vocabulary = 40;
  config.sequence = 16;
  config.tied = tied;
  config.resolve();
  return config;
}

}  // namespace trireme::parallel::test
