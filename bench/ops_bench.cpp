// Speed of single operations compared with their rooflines: GFLOP/s if compute-bound, GB/s (bytes
// that must move) if memory-bound. Threads: OMP_NUM_THREADS.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <benchmark/benchmark.h>

#include "trireme/ops/ops.hpp"

namespace {

using trireme::DType;
using trireme::Shape;
using trireme::Tensor;
using trireme::ops::AttentionMask;
using trireme::ops::Dropout;
using trireme::ops::Ops;

/// A tensor that owns its memory, filled with a smooth pattern between −1 and 1.
struct Owned {
  explicit Owned(const Shape& shape, DType type = DType::f32)
      : memory(static_cast<std::size_t>(shape.elements())) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      memory[i] = std::sin(0.37F * static_cast<float>(i % 10007));
    }
    view = Tensor(memory.data(), shape);
    if (type == DType::f32) return;
    narrow.resize(memory.size());
    const Tensor rounded(narrow.data(), type, shape);
    trireme::ops::make_cpu_ops(1)->copy(rounded, view);
    view = rounded;
  }
  std::vector<float> memory;
  std::vector<std::uint16_t> narrow;
  Tensor view;
};

struct Integers {
  Integers(const Shape& shape, std::int32_t modulus)
      : memory(static_cast<std::size_t>(shape.elements())) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      memory[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(modulus));
    }
    view = Tensor(memory.data(), shape);
  }
  std::vector<std::int32_t> memory;
  Tensor view;
};

std::unique_ptr<Ops> backend() { return trireme::ops::make_cpu_ops(0); }

void count_flops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void count_bytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] = benchmark::Counter(
      bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void count_elements(benchmark::State& state, double elements) {
  state.counters["Gelement/s"] = benchmark::Counter(
      elements * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

/// The type that the last argument of a benchmark selects.
DType type_of(benchmark::State& state, int argument) {
  return state.range(static_cast<std::size_t>(argument)) == 16 ? DType::bf16 : DType::f32;
}

/// m, n, k, form: 0 NN, 1 NT, 2 TN (accumulating in fp32), 3 NT with bias; bits of the factors.
void BM_matmul(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const std::int64_t form = state.range(3);
  const DType type = type_of(state, 4);
  trireme::ops::MatmulOptions options;
  options.transpose_a = form == 2;
  options.transpose_b = form == 1 || form == 3;
  options.accumulate = form == 2;
  const Owned a(form == 2 ? Shape{k, m} : Shape{m, k}, type);
  const Owned b(options.transpose_b ? Shape{n, k} : Shape{k, n}, type);
  const Owned c({m, n}, form == 2 ? DType::f32 : type), bias({n}, type);
  if (form == 3) options.bias = bias.view;
  for (auto _ : state) ops->matmul(c.view, a.view, b.view, options);
  count_flops(state, 2.0 * static_cast<double>(m * n * k));
}
void product_cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "k", "form", "bits"});
  const std::vector<std::vector<std::int64_t>> cases = {
      {1024, 1024, 1024, 0}, {2048, 2048, 2048, 0}, {2048, 2048, 2048, 1}, {2048, 2048, 2048, 2},
      {3072, 1536, 384, 1},  {3072, 1536, 384, 3},  {3072, 384, 1536, 1},  {3072, 384, 1536, 0},
      {1536, 384, 3072, 2},  {384, 1536, 3072, 2},  {384, 384, 3072, 2},   {3072, 768, 1024, 2},
      {166, 50257, 768, 1},  {166, 768, 50257, 0},  {50257, 768, 166, 2}};
  for (const std::int64_t bits : {32, 16}) {
    for (std::vector<std::int64_t> each : cases) {
      each.push_back(bits);
      b->Args(each);
    }
  }
  b->UseRealTime();
}
BENCHMARK(BM_matmul)->Apply(product_cases);

struct AttentionCase {
  AttentionCase(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d, DType type)
      : qkv({b, t, 3 * h, d}, type),
        dqkv({b, t, 3 * h, d}, type),
        out({b, t, h, d}, type),
        dout({b, t, h, d}, type),
        lse({b, h, t}),
        positions({b, t}, static_cast<std::int32_t>(t)),
        samples(static_cast<std::size_t>(b)) {
    mask.query_positions = positions.view;
    mask.key_positions = positions.view;
    mask.plain = true;
    std::iota(samples.begin(), samples.end(), 0);
    // Causal attention counts half of each [T, T] product.
    forward_flops = 2.0 * static_cast<double>(b * h * t * t * d);
  }
  Tensor part(const Owned& x, std::int64_t i) const {
    const std::int64_t h = x.view.extent(2) / 3;
    return x.view.slice(2, i * h, (i + 1) * h);
  }
  Owned qkv, dqkv, out, dout, lse;
  Integers positions;
  std::vector<std::int64_t> samples;
  AttentionMask mask;
  double forward_flops;
};

/// B, H, T, D, dropout in percent, bits.
void BM_attention(benchmark::State& state) {
  const auto ops = backend();
  AttentionCase c(state.range(0), state.range(1), state.range(2), state.range(3),
                  type_of(state, 5));
  const Dropout dropout{static_cast<float>(state.range(4)) / 100.0F, {}};
  const Tensor samples(c.samples.data(), Shape{state.range(0)});
  for (auto _ : state) {
    ops->attention(c.out.view, c.lse.view, c.part(c.qkv, 0), c.part(c.qkv, 1), c.part(c.qkv, 2),
                   c.mask, 0.125F, dropout, samples);
  }
  count_flops(state, c.forward_flops);
}

void BM_attention_backward(benchmark::State& state) {
  const auto ops = backend();
  AttentionCase c(state.range(0), state.range(1), state.range(2), state.range(3),
                  type_of(state, 5));
  const Dropout dropout{static_cast<float>(state.range(4)) / 100.0F, {}};
  const Tensor samples(c.samples.data(), Shape{state.range(0)});
  const Tensor q = c.part(c.qkv, 0), k = c.part(c.qkv, 1), v = c.part(c.qkv, 2);
  ops->attention(c.out.view, c.lse.view, q, k, v, c.mask, 0.125F, dropout, samples);
  for (auto _ : state) {
    ops->attention_backward(c.part(c.dqkv, 0), c.part(c.dqkv, 1), c.part(c.dqkv, 2), c.dout.view,
                            c.out.view, c.lse.view, q, k, v, c.mask, 0.125F, dropout, samples);
  }
  count_flops(state, 2.5 * c.forward_flops);
}

void attention_cases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "H", "T", "D", "dropout", "bits"});
  for (const std::int64_t bits : {32, 16}) {
    b->Args({12, 6, 256, 64, 0, bits})->Args({12, 6, 256, 64, 20, bits});
    b->Args({2, 12, 512, 64, 0, bits})->Args({4, 12, 1024, 64, 0, bits});
  }
  b->UseRealTime();
}
BENCHMARK(BM_attention)->Apply(attention_cases);
BENCHMARK(BM_attention_backward)->Apply(attention_cases);

void BM_layer_norm(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const Owned x({rows, columns}), y({rows, columns}), gain({columns}), bias({columns});
  const Owned mean({rows}), rstd({rows});
  for (auto _ : state) {
    ops->norm(y.view, mean.view, rstd.view, x.view, gain.view, bias.view, 1e-5F);
  }
  count_bytes(state, 8.0 * static_cast<double>(rows * columns));
}
BENCHMARK(BM_layer_norm)->Args({3072, 384})->Args({1024, 768})->UseRealTime();

void BM_layer_norm_backward_input(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const Owned x({rows, columns}), dy({rows, columns}), dx({rows, columns}), gain({columns});
  const Owned mean({rows}), rstd({rows});
  for (auto _ : state) {
    ops->norm_backward_input(dx.view, dy.view, x.view, gain.view, mean.view, rstd.view, dx.view);
  }
  count_bytes(state, 16.0 * static_cast<double>(rows * columns));
}
BENCHMARK(BM_layer_norm_backward_input)->Args({3072, 384})->UseRealTime();

void BM_layer_norm_backward_weight(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const Owned x({rows, columns}), dy({rows, columns}), dgain({columns}), dbias({columns});
  const Owned mean({rows}), rstd({rows});
  for (auto _ : state) {
    ops->norm_backward_weight(dgain.view, dbias.view, dy.view, x.view, mean.view, rstd.view);
  }
  count_bytes(state, 8.0 * static_cast<double>(rows * columns));
}
BENCHMARK(BM_layer_norm_backward_weight)->Args({3072, 384})->UseRealTime();

void BM_rms_norm(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), columns = state.range(1);
  const Owned x({rows, columns}), y({rows, columns}), gain({columns}), rstd({rows});
  for (auto _ : state) ops->norm(y.view, {}, rstd.view, x.view, gain.view, {}, 1e-5F);
  count_bytes(state, 8.0 * static_cast<double>(rows * columns));
}
BENCHMARK(BM_rms_norm)->Args({3072, 384})->UseRealTime();

void BM_column_sum(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0), state.range(1)}), sum({state.range(1)});
  for (auto _ : state) ops->column_sum(sum.view, x.view);
  count_bytes(state, 4.0 * static_cast<double>(x.view.elements()));
}
BENCHMARK(BM_column_sum)->Args({3072, 1536})->Args({3072, 384})->UseRealTime();

void BM_gelu(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0)}), y({state.range(0)});
  for (auto _ : state) ops->gelu(y.view, x.view);
  count_bytes(state, 8.0 * static_cast<double>(state.range(0)));
  count_elements(state, static_cast<double>(state.range(0)));
}
BENCHMARK(BM_gelu)->Arg(1 << 14)->Arg(3072 * 1536)->UseRealTime();

void BM_gelu_backward(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0)}), dy({state.range(0)}), dx({state.range(0)});
  for (auto _ : state) ops->gelu_backward(dx.view, dy.view, x.view);
  count_bytes(state, 12.0 * static_cast<double>(state.range(0)));
  count_elements(state, static_cast<double>(state.range(0)));
}
BENCHMARK(BM_gelu_backward)->Arg(3072 * 1536)->UseRealTime();

void BM_swiglu(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0), 2 * state.range(1)}), y({state.range(0), state.range(1)});
  for (auto _ : state) ops->swiglu(y.view, x.view);
  count_bytes(state, 12.0 * static_cast<double>(y.view.elements()));
}
BENCHMARK(BM_swiglu)->Args({3072, 1024})->UseRealTime();

void BM_add(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0)}), y({state.range(0)});
  for (auto _ : state) ops->add(y.view, y.view, x.view);
  count_bytes(state, 12.0 * static_cast<double>(state.range(0)));
}
BENCHMARK(BM_add)->Arg(3072 * 384)->Arg(1 << 24)->UseRealTime();

void BM_dropout(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0), state.range(1)});
  std::vector<std::int64_t> rows(static_cast<std::size_t>(state.range(0)));
  std::iota(rows.begin(), rows.end(), 0);
  const Dropout dropout{0.2F, {}};
  for (auto _ : state)
    ops->dropout(x.view, x.view, Tensor(rows.data(), Shape{state.range(0)}), dropout);
  count_elements(state, static_cast<double>(x.view.elements()));
}
BENCHMARK(BM_dropout)->Args({3072, 384})->UseRealTime();

void BM_rotary(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), heads = state.range(1), size = state.range(2);
  const Owned x({rows, heads, size}), frequencies({size / 2});
  const Integers positions({rows}, 256);
  for (auto _ : state) ops->rotary(x.view, positions.view, frequencies.view, false);
  count_bytes(state, 8.0 * static_cast<double>(x.view.elements()));
}
BENCHMARK(BM_rotary)->Args({3072, 6, 64})->UseRealTime();

void BM_embedding_backward(benchmark::State& state) {
  const auto ops = backend();
  const Owned table({256, 384}), dy({3072, 384});
  const Integers ids({3072}, 251);
  for (auto _ : state) ops->embedding_backward(table.view, ids.view, dy.view);
  count_bytes(state, 4.0 * static_cast<double>(dy.view.elements()));
}
BENCHMARK(BM_embedding_backward)->UseRealTime();

void BM_loss_rows(benchmark::State& state) {
  const auto ops = backend();
  const std::int64_t rows = state.range(0), vocabulary = state.range(1);
  const Owned logits({rows, vocabulary}), maximum({rows}), sum({rows}), target({rows}),
      factor({rows});
  const Integers targets({rows}, static_cast<std::int32_t>(vocabulary));
  for (auto _ : state) {
    ops->softmax_statistics(maximum.view, sum.view, target.view, logits.view, targets.view);
    ops->cross_entropy_gradient(logits.view, maximum.view, sum.view, targets.view, factor.view, 0);
  }
  count_elements(state, static_cast<double>(logits.view.elements()));
}
BENCHMARK(BM_loss_rows)->Args({3072, 256})->Args({128, 50257})->UseRealTime();

void BM_add_squares(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0)});
  double sum = 0;
  for (auto _ : state) ops->add_squares(Tensor(&sum, {1}), x.view);
  count_bytes(state, 4.0 * static_cast<double>(state.range(0)));
}
BENCHMARK(BM_add_squares)->Arg(10'800'000)->UseRealTime();

void BM_adamw(benchmark::State& state) {
  const auto ops = backend();
  const Owned p({state.range(0)}), m({state.range(0)}), v({state.range(0)}), g({state.range(0)});
  for (float& x : const_cast<std::vector<float>&>(v.memory)) x = x * x;
  trireme::ops::AdamWStep step;
  step.learning_rate = 1e-3F;
  step.weight_decay = 0.1F;
  for (auto _ : state) ops->adamw(p.view, m.view, v.view, g.view, step);
  count_bytes(state, 28.0 * static_cast<double>(state.range(0)));
}
BENCHMARK(BM_adamw)->Arg(10'800'000)->UseRealTime();

/// Memory bandwidth: y = a + b on arrays larger than the caches, two reads and one write.
void BM_copy(benchmark::State& state) {
  const auto ops = backend();
  const Owned x({state.range(0)}), y({state.range(0)});
  for (auto _ : state) ops->copy(y.view, x.view);
  count_bytes(state, 8.0 * static_cast<double>(state.range(0)));
}
BENCHMARK(BM_copy)->Arg(3072 * 384)->Arg(1 << 25)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
