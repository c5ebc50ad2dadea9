// Synthetic batches and models for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/core/random.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/model/config.hpp"

namespace trireme::testing_support {

/// Samples first … first + sequences − 1: tokens that depend only on (sample, position).
inline data::Batch make_test_batch(std::int64_t first, std::int64_t sequences, std::int64_t length,
                                   std::int64_t vocabulary) {
  data::Batch batch;
  batch.sequences = sequences;
  batch.length = length;
  for (std::int64_t s = first; s < first + sequences; ++s) {
    batch.samples.push_back(s);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto token = [&](std::int64_t place) {
        const RandomKey key{99, Purpose::sample_order, 7};
        const auto index = static_cast<std::uint64_t>(s * (length + 1) + place);
        return static_cast<std::int32_t>(random_bits(key, index) %
                                         static_cast<std::uint64_t>(vocabulary));
      };
      batch.inputs.push_back(token(t));
      batch.targets.push_back(token(t + 1));
      batch.weights.push_back(1.0F);
      batch.positions.push_back(static_cast<std::int32_t>(t));
    }
  }
  return batch;
}

/// Ends documents after every few tokens of each sequence, in other places in each sample, as
/// data::make_batch marks them.
inline void divide_into_documents(data::Batch& batch) {
  batch.documents.resize(batch.inputs.size());
  for (std::int64_t s = 0; s < batch.sequences; ++s) {
    std::int32_t document = 0, position = 0;
    for (std::int64_t t = 0; t < batch.length; ++t) {
      const auto at = static_cast<std::size_t>(s * batch.length + t);
      batch.positions[at] = position++;
      batch.documents[at] = document;
      if ((t + 3 * batch.samples[static_cast<std::size_t>(s)]) % 7 != 4) continue;
      batch.weights[at] = 0;
      position = 0;
      ++document;
    }
  }
}

/// A small model with odd sizes, resolved.
inline model::ModelConfig odd_model(bool llama) {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 24;
  config.heads = 4;
  config.vocabulary = 53;
  config.sequence = 19;
  if (llama) {
    config.kv_heads = 2;
    config.hidden = 34;
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.bias = false;
    config.tied = false;
  }
  config.resolve();
  return config;
}

}  // namespace trireme::testing_support
