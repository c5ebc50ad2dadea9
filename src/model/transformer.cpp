#include "trireme/model/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/model/block.hpp"
#include "trireme/model/embedding_head.hpp"

namespace trireme::model {

std::vector<float> rotary_frequencies(const ModelConfig& config) {
  const std::int64_t pairs = config.head_size() / 2;
  std::vector<float> frequencies(static_cast<std::size_t>(pairs));
  const auto original = static_cast<double>(config.rope_original_sequence);
  const double low = config.rope_low_frequency_factor, high = config.rope_high_frequency_factor;
  for (std::int64_t i = 0; i < pairs; ++i) {
    double frequency = std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_size()));
    if (config.stretches_rotary()) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double blend = std::clamp((original / wavelength - low) / (high - low), 0.0, 1.0);
      frequency = (1 - blend) * frequency / config.rope_factor + blend * frequency;
    }
    frequencies[static_cast<std::size_t>(i)] = static_cast<float>(frequency);
  }
  return frequencies;
}

Transformer::Transformer(const ModelConfig& config) : config_(config) {
  TRIREME_ASSERT(config.vocabulary > 0 && config.hidden > 0 && config.kv_heads > 0,
                 "unresolved model");
  if (config.rotary()) {
    frequencies_ = rotary_frequencies(config);
    frequencies_view_ =
        Tensor(frequencies_.data(), {static_cast<std::int64_t>(frequencies_.size())});
  }
  auto embedding = std::make_unique<Embedding>(table_, 0, config);
  const int token_row = embedding->token_row();
  units_.push_back(std::move(embedding));
  for (int layer = 0; layer < config.layers; ++layer) {
    units_.push_back(std::make_unique<Block>(table_, layer + 1, config, layer));
  }
  auto head =
      std::make_unique<Head>(table_, static_cast<int>(config.layers) + 1, config, token_row);
  head_ = head.get();
  units_.push_back(std::move(head));
}

double Transformer::flops_per_token() const {
  return 6.0 * static_cast<double>(table_.product_elements()) +
         6.0 * static_cast<double>(config_.layers) * static_cast<double>(config_.width) *
             static_cast<double>(config_.sequence);
}

std::vector<double> Transformer::unit_costs() const {
  const auto width = static_cast<double>(config_.width);
  const auto products = static_cast<double>(config_.qkv_width() + config_.width +
                                            config_.hidden * (config_.gated() ? 3 : 2));
  std::vector<double> costs(
      units_.size(), 2 * width * products + 2 * width * static_cast<double>(config_.sequence));
  costs.front() = 4 * width;  // reads and adds a row or two
  costs.back() = 2 * width * static_cast<double>(config_.vocabulary);
  return costs;
}

}  // namespace trireme::model
