// Synthetic tokens for whole steps.
#pragma once

#include <cstdint>
#include <utility>

#include "trireme/core/random.hpp"
#include "trireme/model/config.hpp"
#include "trireme/parallel/microbatch.hpp"

namespace trireme::bench {

/// `sequences` windows of tokens drawn evenly from the model's vocabulary.
inline parallel::HostMicrobatch random_batch(const model::ModelConfig& config,
                                             std::int64_t sequences) {
  data::Batch batch{.sequences = sequences, .length = config.sequence};
  const RandomKey key{1, Purpose::sample_order, 0};
  for (std::int64_t i = 0; i < sequences * config.sequence; ++i) {
    const auto token = [&](std::int64_t place) {
      return static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(place)) %
                                       static_cast<std::uint64_t>(config.vocabulary));
    };
    batch.inputs.push_back(token(i));
    batch.targets.push_back(token(i + 1));
    batch.weights.push_back(1);
    batch.positions.push_back(static_cast<std::int32_t>(i % config.sequence));
  }
  for (std::int64_t i = 0; i < sequences; ++i) batch.samples.push_back(i);
  return parallel::HostMicrobatch(std::move(batch));
}

}  // namespace trireme::bench
