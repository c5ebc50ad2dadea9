// The whole model: its units, its parameter table, and how a stage of units lies in memory.
#pragma once

#include <memory>
#include <vector>

#include "trireme/model/config.hpp"
#include "trireme/model/head.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/table.hpp"

namespace trireme::model {

/// Angular frequency of each rotary pair, θ^(−2i/D), stretched as the configuration says
/// (Llama 3.1's rule: short wavelengths kept, long ones divided by the factor, a linear blend
/// between).
std::vector<float> rotary_frequencies(const ModelConfig& config);

class Transformer {
 public:
  /// `config` is resolved and its vocabulary known.
  explicit Transformer(const ModelConfig& config);
  const ModelConfig& config() const { return config_; }
  const params::ParameterTable& table() const { return table_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const Head& head() const { return *head_; }
  /// Floating-point operations of training on one token: 6·N + 6·L·C·T (ARCHITECTURE: "A run's
  /// record").
  double flops_per_token() const;
  /// One view per row of the table into a flat fp32 buffer.
  std::vector<Tensor> views(const Tensor& flat) const;

 private:
  ModelConfig config_;
  params::ParameterTable table_;
  std::vector<float> frequencies_;
  std::vector<std::unique_ptr<Unit>> units_;
  Head* head_ = nullptr;
};

/// Offsets of everything a stage of all units needs for micro-batches of at most `rows` tokens, one
/// in flight.
struct StageLayout {
  StageLayout(const Transformer& model, std::int64_t rows);
  std::int64_t rows = 0;
  std::vector<std::size_t> outputs;  // of each unit but the last, [R, C], in the stash arena
  std::vector<std::size_t> stash;    // each unit's stash area, in the stash arena
  std::size_t stash_bytes = 0;
  // Work space: two [R, C] gradients that pass between units, then the largest delta and scratch
  // areas.
  std::size_t gradient_bytes = 0;  // of one of the two
  std::size_t delta_bytes = 0, scratch_bytes = 0;
  std::size_t workspace_bytes = 0;
};

}  // namespace trireme::model
