#include "trireme/bench/attention_check.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::bench {
namespace {

/// Rows of a sequence that are looked at: the first, the last and some between.
std::vector<std::int64_t> chosen_rows(std::int64_t tokens) {
  std::vector<std::int64_t> rows;
  constexpr std::int64_t most = 5;
  for (std::int64_t i = 0; i < most; ++i) rows.push_back(i * (tokens - 1) / (most - 1));
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

class Oracle {
 public:
  Oracle(const AttentionShape& shape, DType type, double scale, const AttentionValues& values)
      : s_(shape), scale_(scale), x_(values) {
    const double narrow = type == DType::bf16 ? 0x1p-8 : type == DType::f16 ? 0x1p-11 : 0;
    slack_ = 8 * (narrow + 0x1p-23 * static_cast<double>(s_.tokens + s_.head_size));
  }

  std::int64_t run(bool backward) {
    const std::int64_t h = s_.heads - 1, b = s_.sequences - 1;  // the last is the furthest off
    for (const std::int64_t row : chosen_rows(s_.tokens)) {
      if (backward) {
        query_gradient(b, h, row);
        key_gradients(b, h / (s_.heads / s_.kv_heads), row);
      } else {
        forward(b, h, row);
      }
    }
    return wrong_;
  }

 private:
  const double* at(const std::vector<double>& x, std::int64_t b, std::int64_t t, std::int64_t head,
                   std::int64_t heads) const {
    return x.data() + ((b * s_.tokens + t) * heads + head) * s_.head_size;
  }
  const double* query(const std::vector<double>& x, std::int64_t b, std::int64_t t,
                      std::int64_t h) const {
    return at(x, b, t, h, s_.heads);
  }
  const double* key(const std::vector<double>& x, std::int64_t b, std::int64_t t,
                    std::int64_t h) const {
    return at(x, b, t, h / (s_.heads / s_.kv_heads), s_.kv_heads);
  }
  double dot(const double* x, const double* y) const {
    double sum = 0;
    for (std::int64_t d = 0; d < s_.head_size; ++d) sum += x[d] * y[d];
    return sum;
  }
  double size(const double* x, const double* y) const {
    double sum = 0;
    for (std::int64_t d = 0; d < s_.head_size; ++d) sum += std::abs(x[d] * y[d]);
    return sum;
  }
  double lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return x_.lse[static_cast<std::size_t>((b * s_.heads + h) * s_.tokens + i)];
  }
  /// `terms`: the sum of the terms' sizes; NaN is always wrong.
  void compare(double found, double expected, double terms) {
    wrong_ += std::abs(found - expected) <= slack_ * terms + 1e-30 ? 0 : 1;
  }

  void forward(std::int64_t b, std::int64_t h, std::int64_t i) {
    std::vector<double> p(static_cast<std::size_t>(i + 1));
    double sum = 0, off = 1;
    for (std::int64_t j = 0; j <= i; ++j) {
      const double score = scale_ * dot(query(x_.q, b, i, h), key(x_.k, b, j, h));
      // An error of the score is one of the probability's factor.
      off = std::max(off, 1 + scale_ * size(query(x_.q, b, i, h), key(x_.k, b, j, h)));
      sum += p[static_cast<std::size_t>(j)] = std::exp(score);
    }
    compare(lse(b, h, i), std::log(sum), off + std::abs(std::log(sum)));
    for (std::int64_t d = 0; d < s_.head_size; ++d) {
      double expected = 0, terms = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        const double term = p[static_cast<std::size_t>(j)] / sum * key(x_.v, b, j, h)[d];
        expected += term;
        terms += std::abs(term);
      }
      compare(query(x_.out, b, i, h)[d], expected, terms * off);
    }
  }

  /// What score (i, j) has to do with the loss: probability, gradient of the score, and bounds of
  /// the terms that it is the difference of.
  struct Score {
    double p = 0, gradient = 0, terms = 0;
  };
  Score score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double* q = query(x_.q, b, i, h);
    const double* k = key(x_.k, b, j, h);
    const double* out = query(x_.out, b, i, h);
    const double* dout = query(x_.dout, b, i, h);
    const double* v = key(x_.v, b, j, h);
    const double p = std::exp(scale_ * dot(q, k) - lse(b, h, i));
    const double off = 1 + scale_ * size(q, k) + std::abs(lse(b, h, i));
    return {p, p * (dot(dout, v) - dot(dout, out)), p * off * (size(dout, v) + size(dout, out))};
  }

  void query_gradient(std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto width = static_cast<std::size_t>(s_.head_size);
    std::vector<double> expected(width), terms(width);
    for (std::int64_t j = 0; j <= i; ++j) {
      const Score one = score(b, h, i, j);
      for (std::size_t d = 0; d < width; ++d) {
        expected[d] += scale_ * one.gradient * key(x_.k, b, j, h)[d];
        terms[d] += scale_ * one.terms * std::abs(key(x_.k, b, j, h)[d]);
      }
    }
    for (std::size_t d = 0; d < width; ++d) {
      compare(query(x_.dq, b, i, h)[d], expected[d], terms[d]);
    }
  }

  void key_gradients(std::int64_t b, std::int64_t g, std::int64_t j) {
    const auto width = static_cast<std::size_t>(s_.head_size);
    std::vector<double> dk(width), dv(width), dk_terms(width), dv_terms(width);
    const std::int64_t share = s_.heads / s_.kv_heads;
    for (std::int64_t h = g * share; h < (g + 1) * share; ++h) {
      for (std::int64_t i = j; i < s_.tokens; ++i) {
        const Score one = score(b, h, i, j);
        const double off =
            1 + scale_ * size(query(x_.q, b, i, h), key(x_.k, b, j, h)) + std::abs(lse(b, h, i));
        for (std::size_t d = 0; d < width; ++d) {
          const double q = query(x_.q, b, i, h)[d], dout = query(x_.dout, b, i, h)[d];
          dk[d] += scale_ * one.gradient * q;
          dk_terms[d] += scale_ * one.terms * std::abs(q);
          dv[d] += one.p * dout;
          dv_terms[d] += one.p * off * std::abs(dout);
        }
      }
    }
    for (std::size_t d = 0; d < width; ++d) {
      compare(at(x_.dk, b, j, g, s_.kv_heads)[d], dk[d], dk_terms[d]);
      compare(at(x_.dv, b, j, g, s_.kv_heads)[d], dv[d], dv_terms[d]);
    }
  }

  const AttentionShape& s_;
  double scale_;
  const AttentionValues& x_;
  double slack_ = 0;
  std::int64_t wrong_ = 0;
};

}  // namespace

std::int64_t count_wrong_rows(const AttentionShape& shape, DType type, double scale,
                              const AttentionValues& values, bool backward) {
  return Oracle(shape, type, scale, values).run(backward);
}

}  // namespace trireme::bench
