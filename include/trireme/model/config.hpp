// The choices that make one transformer GPT-2 or Llama, and the named presets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/config.hpp"

namespace trireme::model {

/// Every field is a key of the section "model".
struct ModelConfig {
  std::string preset;  // empty: the built-in values
  std::int64_t layers = 6;
  std::int64_t width = 384;   // C
  std::int64_t heads = 6;     // H; head size D = C / H
  std::int64_t kv_heads = 0;  // G; 0: as many as heads
  std::int64_t hidden = 0;    // F of the MLP; 0: 4·C for gelu, 8/3·C rounded up to 64 for swiglu
  std::int64_t vocabulary = 0;  // V; 0: the dataset's
  std::int64_t sequence = 256;  // T
  std::int64_t positions = 0;   // see trained_length
  std::string norm = "layernorm";
  double epsilon = 1e-5;
  std::string position = "learned";
  double rope_theta = 10000;
  std::string rope_scaling = "none";
  double rope_factor = 8;
  double rope_low_frequency_factor = 1;
  double rope_high_frequency_factor = 4;
  std::int64_t rope_original_sequence = 8192;
  std::string activation = "gelu";
  bool bias = true;
  bool tied = true;
  double dropout = 0;
  double attention_dropout = 0;
  double init_deviation = 0.02;
  bool scaled_residual = true;

  void declare(config::Fields& fields);
  /// Sets derived fields (kv_heads, hidden) and checks that fields agree; throws ConfigError.
  void resolve();
  /// The longest sequence that the weights are made for: rows of the table of learned positions;
  /// for rotary ones what config.json of an export has.
  std::int64_t trained_length() const { return std::max(positions, sequence); }
  std::int64_t head_size() const { return width / heads; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size(); }
  /// Initial standard deviation of projections into the residual stream: GPT-2 divides by
  /// √(2·layers), the number of additions to the stream.
  double residual_deviation() const;
  bool gated() const { return chosen(activation, "swiglu", "gelu"); }
  bool rotary() const { return chosen(position, "rotary", "learned"); }
  bool layer_norm() const { return chosen(norm, "layernorm", "rmsnorm"); }
  bool stretches_rotary() const { return chosen(rope_scaling, "llama3", "none"); }

 private:
  /// Throws ConfigError where arithmetic on bytes of all parameters could overflow.
  void check_elements() const;
  /// Whether `value` is `choice`; fails unless it is that or `other`.
  static bool chosen(const std::string& value, const char* choice, const char* other) {
    TRIREME_ASSERT(value == choice || value == other, "{} is neither {} nor {}", value, choice,
                   other);
    return value == choice;
  }
};

/// A named preset: the keys of section "model" that it sets.
struct Preset {
  std::string name;
  std::string about;
  nlohmann::json values;  // {"layers": 12, …}
};
const std::vector<Preset>& presets();
/// One of them; the field "preset" refuses other names.
const Preset& find_preset(const std::string& name);

}  // namespace trireme::model
