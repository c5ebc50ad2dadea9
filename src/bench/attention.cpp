#include <algorithm>
#include <cmath>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/ceilings.hpp"
#include "trireme/bench/exact.hpp"

namespace trireme::bench {
namespace {

/// Rows of a sequence that are compared: the first, the last and some between.
std::vector<std::int64_t> chosen_rows(std::int64_t tokens) {
  std::vector<std::int64_t> rows;
  constexpr std::int64_t most = 5;
  for (std::int64_t i = 0; i < most; ++i) rows.push_back(i * (tokens - 1) / (most - 1));
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Recomputes rows of attention's results with plain sums in fp64.
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

/// One shape in one type, with its tensors: q, k and v as a model has them, side by side.
class Trial {
 public:
  Trial(const Place& place, ops::Ops& ops, const AttentionShape& shape, DType type)
      : device_(place.device()),
        ops_(ops),
        shape_(shape),
        type_(type),
        ledger_(device_),
        scale_(1 / std::sqrt(static_cast<float>(shape.head_size))) {
    const auto [B, H, T, D, G] = shape;
    const std::int64_t all = H + 2 * G;
    qkv_ = make(type, {B, T, all, D});
    dqkv_ = make(type, {B, T, all, D});
    out_ = make(type, {B, T, H, D});
    dout_ = make(type, {B, T, H, D});
    lse_ = make(DType::f32, {B, H, T});
    positions_ = make(DType::i32, {B, T});
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < B * T; ++i) positions.push_back(static_cast<std::int32_t>(i % T));
    device::write(device_, positions_, positions.data());
    mask_ = {.query_positions = positions_, .key_positions = positions_, .plain = true};
    plan::fill_with_noise(ops, device_, ledger_, qkv_);
    plan::fill_with_noise(ops, device_, ledger_, dout_);
  }

  void forward() {
    ops_.attention(out_, lse_, part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), mask_, scale_, {}, {});
  }
  void backward() {
    ops_.attention_backward(part(dqkv_, 0), part(dqkv_, 1), part(dqkv_, 2), dout_, out_, lse_,
                            part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), mask_, scale_, {}, {});
  }
  double operations(bool backward) const {
    return backward ? attention_backward_operations(out_, part(qkv_, 1))
                    : attention_operations(out_, part(qkv_, 1));
  }

  std::int64_t check(bool backward_too) {
    poison(device_, backward_too ? dqkv_ : out_);
    if (!backward_too) poison(device_, lse_);
    backward_too ? backward() : forward();
    AttentionValues values;
    const auto take = [&](const Tensor& whole, std::int64_t first, std::int64_t heads) {
      std::vector<std::byte> host(whole.bytes());
      device::read(device_, host.data(), whole);
      std::vector<double> result;
      const std::int64_t all = whole.extent(2), size = whole.extent(3);
      for (std::int64_t i = 0; i < whole.elements(); ++i) {
        const std::int64_t head = i / size % all;
        if (head < first || head >= first + heads) continue;
        result.push_back(load(type_, host.data(), i));
      }
      return result;
    };
    const auto [B, H, T, D, G] = shape_;
    values.q = take(qkv_, 0, H);
    values.k = take(qkv_, H, G);
    values.v = take(qkv_, H + G, G);
    values.out = take(out_, 0, H);
    values.dout = take(dout_, 0, H);
    values.dq = take(dqkv_, 0, H);
    values.dk = take(dqkv_, H, G);
    values.dv = take(dqkv_, H + G, G);
    std::vector<float> lse(static_cast<std::size_t>(lse_.elements()));
    device::read(device_, lse.data(), lse_);
    values.lse.assign(lse.begin(), lse.end());
    return count_wrong_rows(shape_, type_, scale_, values, backward_too);
  }

 private:
  Tensor make(DType type, const Shape& shape) {
    return allocate(memory_.emplace_back(), ledger_, device::Use::workspace, type, shape);
  }
  /// 0: q, 1: k, 2: v.
  Tensor part(const Tensor& whole, int which) const {
    const auto [B, H, T, D, G] = shape_;
    const std::int64_t first = which == 0 ? 0 : H + (which - 1) * G;
    return whole.slice(2, first, first + (which == 0 ? H : G));
  }

  device::Device& device_;
  ops::Ops& ops_;
  AttentionShape shape_;
  DType type_;
  device::MemoryLedger ledger_;
  float scale_;
  std::vector<device::Buffer> memory_;
  Tensor qkv_, dqkv_, out_, dout_, lse_, positions_;
  ops::AttentionMask mask_;
};

void measure(const Place& place, ops::Ops& ops, const AttentionOptions& options, Sheet& sheet,
             const AttentionShape& shape, DType type) {
  Trial trial(place, ops, shape, type);
  for (const bool backward : {false, true}) {
    const Times times =
        time_rounds(place, options.rounds, [&] { backward ? trial.backward() : trial.forward(); });
    const std::int64_t wrong = place.world.all_reduce(trial.check(backward), comm::Reduction::sum);
    const double speed = trial.operations(backward) / times.average;
    const auto [B, H, T, D, G] = shape;
    const std::string pass = backward ? "backward" : "forward";
    sheet.result({.name = fmt::format("attention/{}/{}/B:{}/H:{}/T:{}/D:{}/G:{}", pass,
                                      trireme::name_of(type), B, H, T, D, G),
                  .iterations = options.rounds.iterations,
                  .times = times,
                  .threads = place.session.size() * place.threads,
                  .counters = {{"flops", speed}}},
                 {std::to_string(B), std::to_string(H), std::to_string(T), std::to_string(D),
                  std::to_string(G), std::string(trireme::name_of(type)), pass},
                 {cell(speed / 1e9)}, wrong);
  }
}

}  // namespace

std::int64_t count_wrong_rows(const AttentionShape& shape, DType type, double scale,
                              const AttentionValues& values, bool backward) {
  return Oracle(shape, type, scale, values).run(backward);
}

void bench_attention(const Place& place, const AttentionOptions& options, Sheet& sheet) {
  sheet.result_columns({{"B", "", 4},
                        {"H", "", 4},
                        {"T", "", 6},
                        {"D", "", 4},
                        {"G", "", 4},
                        {"type", "", 5},
                        {"pass", "", 9}},
                       {{"speed", "GFLOP/s", 9}});
  device::MemoryLedger ledger(place.device());
  const auto ops = make_ops(place.computes, ledger, place.threads);
  for (const DType type : options.types) {
    for (const AttentionShape& shape : options.shapes) {
      measure(place, *ops, options, sheet, shape, type);
    }
  }
}

}  // namespace trireme::bench
