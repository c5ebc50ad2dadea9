// Layouts of a small model that divides evenly.
#pragma once

#include "trireme/model/transformer.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::plan::test {

inline comm::GridShape shape_of(int tensor, int data, int pipeline) {
  return {{tensor, 1, data, pipeline}};
}

struct Layout {
  int tensor, data, pipeline, zero;
  bool sequence;
};

inline model::ModelConfig even_model() {
  model::ModelConfig config;
  config.layers = 6;  // with embedding and head 8 units
  config.width = 64;
  config.heads = 4;
  config.vocabulary = 256;
  config.sequence = 32;
  config.resolve();
  return config;
}

inline parallel::ReplicaOptions options_of(const Layout& layout) {
  parallel::ReplicaOptions options;
  options.stage.micro_batches = 4;
  options.stage.sequences = 2;
  options.stage.zero = layout.zero;
  options.stage.sequence_parallel = layout.sequence;
  options.stage.reproducible = false;
  options.bucket_elements = 10'000;
  return options;
}

}  // namespace trireme::plan::test
