// The whole model: its units and its parameter table. A rank runs some of the units.
#pragma once

#include <memory>
#include <vector>

#include "trireme/model/config.hpp"
#include "trireme/model/embedding_head.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::model {

/// Angular frequency of each rotary pair, θ^(−2i/D), scaled as configured. Llama 3.1's rule keeps
/// short wavelengths, divides long ones' frequencies by the factor and blends linearly in between.
std::vector<float> rotary_frequencies(const ModelConfig& config);

class Transformer {
 public:
  /// `config` is resolved and its vocabulary known.
  explicit Transformer(const ModelConfig& config);
  const ModelConfig& config() const { return config_; }
  const params::ParameterTable& table() const { return table_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const Head& head() const { return *head_; }
  /// [D/2] fp32 in host memory; absent where positions are learned.
  const Tensor& frequencies() const { return frequencies_view_; }
  /// Floating-point operations of training on one token: 6·N + 6·L·C·T.
  double flops_per_token() const;
  /// The same for forward of each unit, by which pipeline stages are balanced.
  std::vector<double> unit_costs() const;

 private:
  ModelConfig config_;
  params::ParameterTable table_;
  std::vector<float> frequencies_;
  Tensor frequencies_view_;
  std::vector<std::unique_ptr<Unit>> units_;
  Head* head_ = nullptr;
};

}  // namespace trireme::model
