// The transformer in plain double loops, for one micro-batch: what units are compared with. Shares
// no code with ops or with the units; dropout's masks are those that ops.hpp defines.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/core/random.hpp"
#include "trireme/model/config.hpp"

namespace trireme::model::test {

using Values = std::vector<double>;
using Parameters = std::map<std::string, Values>;  // by name, logical shape, row-major

/// A micro-batch of B sequences of T tokens: R = B·T rows.
struct Tokens {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int32_t> inputs, targets, positions, documents;  // [R]; one document if empty
  std::vector<float> weights;                                       // [R]
  std::vector<std::int64_t> samples;                                // [B]
  std::int64_t rows() const { return sequences * length; }
};

class Oracle {
 public:
  Oracle(const ModelConfig& config, const Tokens& tokens, std::uint64_t seed)
      : config_(config), tokens_(tokens), seed_(seed) {}

  /// y [R, C]
  Values embedding(const Parameters& parameters) const {
    const std::int64_t width = config_.width;
    const Values& token = parameters.at("embedding.token.weight");
    Values y(at(tokens_.rows() * width));
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      for (std::int64_t c = 0; c < width; ++c) {
        y[at(r * width + c)] = token[at(tokens_.inputs[at(r)] * width + c)];
        if (config_.rotary()) continue;
        const Values& position = parameters.at("embedding.position.weight");
        y[at(r * width + c)] += position[at(tokens_.positions[at(r)] * width + c)];
      }
    }
    return dropout(y, 0);
  }

  /// y [R, C] of block `layer`
  Values block(const Parameters& parameters, int layer, const Values& x) const {
    const std::string name = "blocks." + std::to_string(layer);
    Values branch = norm(parameters, name + ".norm1", x);
    branch = attention(parameters, name + ".attention", layer, branch);
    const Values middle = sum(x, dropout(branch, 3 * layer + 2));
    branch = mlp(parameters, name + ".mlp", norm(parameters, name + ".norm2", middle));
    return sum(middle, dropout(branch, 3 * layer + 3));
  }

  /// logits [R, V]
  Values logits(const Parameters& parameters, const Values& x) const {
    const Values& weight = parameters.at(config_.tied ? "embedding.token.weight" : "head.weight");
    return product(norm(parameters, "head.norm", x), weight, {}, config_.width, config_.vocabulary);
  }

  /// Σ weight·nll
  double loss(const Parameters& parameters, const Values& x) const {
    const Values all = logits(parameters, x);
    double total = 0;
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      double exponentials = 0;
      for (std::int64_t v = 0; v < config_.vocabulary; ++v) {
        exponentials += std::exp(all[at(r * config_.vocabulary + v)]);
      }
      const double target = all[at(r * config_.vocabulary + tokens_.targets[at(r)])];
      total += double{tokens_.weights[at(r)]} * (std::log(exponentials) - target);
    }
    return total;
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  /// 0, or 1 / (1 − rate) for what is kept.
  double kept(double rate, std::uint32_t stream, std::int64_t index) const {
    if (rate == 0) return 1;
    const RandomKey key{seed_, Purpose::dropout, stream};
    const double bits = random_bits(key, static_cast<std::uint64_t>(index));
    return bits >= static_cast<double>(static_cast<float>(rate)) * 4294967296.0
               ? 1 / (1 - static_cast<double>(static_cast<float>(rate)))
               : 0;
  }

  Values dropout(Values x, int stream) const {
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      const std::int64_t row =
          tokens_.samples[at(r / tokens_.length)] * tokens_.length + r % tokens_.length;
      for (std::int64_t c = 0; c < config_.width; ++c) {
        x[at(r * config_.width + c)] *=
            kept(config_.dropout, static_cast<std::uint32_t>(stream), row * config_.width + c);
      }
    }
    return x;
  }

  static Values sum(const Values& a, const Values& b) {
    Values y(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) y[i] = a[i] + b[i];
    return y;
  }

  /// x [R, in]·Wᵀ + b, W [out, in]
  static Values product(const Values& x, const Values& weight, const Values& bias, std::int64_t in,
                        std::int64_t out) {
    const auto rows = static_cast<std::int64_t>(x.size()) / in;
    Values y(at(rows * out));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < out; ++o) {
        double total = bias.empty() ? 0 : bias[at(o)];
        for (std::int64_t i = 0; i < in; ++i) total += x[at(r * in + i)] * weight[at(o * in + i)];
        y[at(r * out + o)] = total;
      }
    }
    return y;
  }

  Values linear(const Parameters& parameters, const std::string& name, const Values& x,
                std::int64_t in, std::int64_t out) const {
    return product(x, parameters.at(name + ".weight"),
                   config_.bias ? parameters.at(name + ".bias") : Values(), in, out);
  }

  Values norm(const Parameters& parameters, const std::string& name, const Values& x) const {
    const Values& gain = parameters.at(name + ".weight");
    const std::int64_t width = config_.width;
    Values y(x.size());
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      const double* row = &x[at(r * width)];
      double mean = 0, square = 0;
      for (std::int64_t c = 0; c < width; ++c) mean += row[c] / static_cast<double>(width);
      if (config_.norm == "rmsnorm") mean = 0;
      for (std::int64_t c = 0; c < width; ++c) square += (row[c] - mean) * (row[c] - mean);
      const double deviation = std::sqrt(square / static_cast<double>(width) + config_.epsilon);
      for (std::int64_t c = 0; c < width; ++c) {
        y[at(r * width + c)] = (row[c] - mean) / deviation * gain[at(c)];
        if (config_.norm == "layernorm" && config_.bias) {
          y[at(r * width + c)] += parameters.at(name + ".bias")[at(c)];
        }
      }
    }
    return y;
  }

  /// Turns `count` heads from column `first` of rows of `width` by their rows' positions.
  void rotate(Values& x, std::int64_t width, std::int64_t first, std::int64_t count) const {
    const std::int64_t size = config_.head_size();
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      for (std::int64_t i = 0; i < count * size / 2; ++i) {
        const std::int64_t head = i / (size / 2), pair = i % (size / 2);
        const double angle = tokens_.positions[at(r)] *
                             std::pow(config_.rope_theta,
                                      -2.0 * static_cast<double>(pair) / static_cast<double>(size));
        double& a = x[at(r * width + first + head * size + pair)];
        double& b = x[at(r * width + first + head * size + pair + size / 2)];
        const double before = a;
        a = before * std::cos(angle) - b * std::sin(angle);
        b = before * std::sin(angle) + b * std::cos(angle);
      }
    }
  }

  bool sees(std::int64_t query, std::int64_t key) const {
    const bool same =
        tokens_.documents.empty() || tokens_.documents[at(query)] == tokens_.documents[at(key)];
    return same && tokens_.positions[at(key)] <= tokens_.positions[at(query)];
  }

  Values attention(const Parameters& parameters, const std::string& name, int layer,
                   const Values& x) const {
    const std::int64_t width = config_.width, size = config_.head_size(), heads = config_.heads;
    const std::int64_t columns = config_.qkv_width(), length = tokens_.length;
    Values qkv = linear(parameters, name + ".qkv", x, width, columns);
    if (config_.rotary()) rotate(qkv, columns, 0, heads + config_.kv_heads);
    Values mixed(at(tokens_.rows() * width));
    const auto stream = static_cast<std::uint32_t>(3 * layer + 1);
    for (std::int64_t query = 0; query < tokens_.rows(); ++query) {
      const std::int64_t sequence = query / length, i = query % length;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t group = h / (heads / config_.kv_heads);
        Values share(at(length));
        double total = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          const std::int64_t key = sequence * length + j;
          if (!sees(query, key)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < size; ++d) {
            score += qkv[at(query * columns + h * size + d)] *
                     qkv[at(key * columns + (heads + group) * size + d)];
          }
          total += share[at(j)] = std::exp(score / std::sqrt(static_cast<double>(size)));
        }
        for (std::int64_t j = 0; j < length; ++j) {
          const std::int64_t index =
              ((tokens_.samples[at(sequence)] * heads + h) * length + i) * length + j;
          const double probability =
              share[at(j)] / total * kept(config_.attention_dropout, stream, index);
          for (std::int64_t d = 0; d < size; ++d) {
            const std::int64_t value = (heads + config_.kv_heads + group) * size + d;
            mixed[at(query * width + h * size + d)] +=
                probability * qkv[at((sequence * length + j) * columns + value)];
          }
        }
      }
    }
    return linear(parameters, name + ".out", mixed, width, width);
  }

  Values mlp(const Parameters& parameters, const std::string& name, const Values& x) const {
    const std::int64_t hidden = config_.hidden;
    const bool gated = config_.activation == "swiglu";
    const std::int64_t columns = gated ? 2 * hidden : hidden;
    const Values up =
        linear(parameters, name + (gated ? ".gate_up" : ".up"), x, config_.width, columns);
    Values active(at(tokens_.rows() * hidden));
    for (std::int64_t r = 0; r < tokens_.rows(); ++r) {
      for (std::int64_t f = 0; f < hidden; ++f) {
        const double u = up[at(r * columns + f)];
        active[at(r * hidden + f)] =
            gated ? u / (1 + std::exp(-u)) * up[at(r * columns + hidden + f)]
                  : 0.5 * u * (1 + std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
      }
    }
    return linear(parameters, name + ".down", active, hidden, config_.width);
  }

  ModelConfig config_;
  Tokens tokens_;
  std::uint64_t seed_;
};

}  // namespace trireme::model::test
