// Optimizer updates and the gradient norm.
#include "trireme/core/half.hpp"

#include "elements.cuh"
#include "philox.cuh"

namespace trireme::ops {
namespace {

/// Σ x² of the blocks of elements blockIdx.x, blockIdx.x + gridDim.x, …: written to
/// sums[blockIdx.x], or added to it. Squares of floats are exact in fp64.
template <class T>
__global__ void square_sums_kernel(double* sums, const T* x, std::int64_t count, bool aligned,
                                   bool accumulate) {
  __shared__ double scratch[block_warps];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * square_block;
  double own = 0;
  for (std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * square_block; begin < count;
       begin += step) {
#pragma unroll
    for (int i = 0; i < square_block / (block_threads * pack); ++i) {
      const std::int64_t c = begin + (i * block_threads + threadIdx.x) * pack;
      const std::int64_t rest = count - c;
      if (rest <= 0) continue;
      float v[pack];
      load(v, x + c, rest < pack ? static_cast<int>(rest) : pack, aligned);
#pragma unroll
      for (int e = 0; e < pack; ++e) own += static_cast<double>(v[e]) * static_cast<double>(v[e]);
    }
  }
  own = group_reduce<block_threads>(own, scratch, Plus{});
  if (threadIdx.x == 0) sums[blockIdx.x] = accumulate ? sums[blockIdx.x] + own : own;
}

/// total += Σ terms, by one block.
__global__ void add_terms_kernel(double* total, const double* terms, int count) {
  __shared__ double scratch[block_warps];
  double own = 0;
  for (int i = threadIdx.x; i < count; i += block_threads) own += terms[i];
  own = group_reduce<block_threads>(own, scratch, Plus{});
  if (threadIdx.x == 0) *total += own;
}

/// x rounded stochastically: away from 0 with the probability of the truncated part. Only bf16.
__device__ inline Bf16 round_stochastically(Bf16, float x, std::uint32_t random) {
  return {float_to_bf16_up_by(x, random & 0xffffU)};
}
template <class T>
__device__ inline T round_stochastically(T, float x, std::uint32_t) {
  return rounded<T>(x);
}

template <class T>
struct CopyOut {
  View<T> values;  // data null: none
  Rounding how;
  __device__ void write(float (&x)[pack], std::int64_t i, int count) const {
    if (values.data == nullptr) return;
    if (!how.stochastic) {
      values.store(x, 0, i, count);
      return;
    }
    std::int64_t column = how.column + i, index = how.first + i;
    if (how.skip != 0) {
      index += column / how.width * how.skip;
      column %= how.width;
    }
    Words words{};
    std::int64_t drawn = -1;  // the block of `words`
#pragma unroll 1
    for (int e = 0; e < count; ++e) {
      if (index / 4 != drawn) {
        drawn = index / 4;
        words = random_words(how.seed, how.purpose, how.stream, static_cast<std::uint64_t>(drawn));
      }
      values.data[i + e] =
          round_stochastically(T{}, x[e], words.pick(static_cast<unsigned>(index & 3)));
      ++index;
      if (how.skip != 0 && ++column == how.width) {
        column = 0;
        index += how.skip;
      }
    }
  }
};

template <class T>
struct Round {
  View<float> from;
  CopyOut<T> copy;
  __device__ void operator()(std::int64_t, std::int64_t i, int count) const {
    float x[pack];
    from.load(x, 0, i, count);
    copy.write(x, i, count);
  }
};

template <class T>
struct AdamW {
  View<float> p, m, v, g;
  AdamWConstants k;
  CopyOut<T> copy;
  __device__ void operator()(std::int64_t, std::int64_t i, int count) const {
    float parameter[pack], first[pack], second[pack], gradient[pack];
    p.load(parameter, 0, i, count);
    m.load(first, 0, i, count);
    v.load(second, 0, i, count);
    g.load(gradient, 0, i, count);
#pragma unroll
    for (int e = 0; e < pack; ++e) {
      const float scaled = rounded_product(gradient[e], k.scale);
      first[e] = fmaf(k.rest1, scaled, rounded_product(k.beta1, first[e]));
      second[e] =
          fmaf(k.rest2, rounded_product(scaled, scaled), rounded_product(k.beta2, second[e]));
      const float update =
          rounded_product(k.rate, first[e]) / fmaf(sqrtf(second[e]), k.root2, k.epsilon);
      parameter[e] = rounded_product(parameter[e], k.decay) - update;
    }
    p.store(parameter, 0, i, count);
    m.store(first, 0, i, count);
    v.store(second, 0, i, count);
    copy.write(parameter, i, count);
  }
};

template <class T>
struct Sgd {
  View<float> p, buffer, g;
  SgdConstants k;
  CopyOut<T> copy;
  __device__ void operator()(std::int64_t, std::int64_t i, int count) const {
    float parameter[pack], moved[pack], gradient[pack];
    p.load(parameter, 0, i, count);
    buffer.load(moved, 0, i, count);
    g.load(gradient, 0, i, count);
#pragma unroll
    for (int e = 0; e < pack; ++e) {
      const float all = fmaf(k.decay, parameter[e], rounded_product(gradient[e], k.scale));
      moved[e] = fmaf(k.momentum, moved[e], all);
      parameter[e] = fmaf(-k.rate, moved[e], parameter[e]);
    }
    p.store(parameter, 0, i, count);
    buffer.store(moved, 0, i, count);
    copy.write(parameter, i, count);
  }
};

template <class T, class Data>
View<T> flat_view(Data* data) {
  return {reinterpret_cast<T*>(data), 0, is_aligned(data)};
}
View<float> flat_view(const float* data) { return {const_cast<float*>(data), 0, is_aligned(data)}; }

void square_sums(double* sums, const void* x, Element type, std::int64_t count, std::int64_t groups,
                 bool accumulate, CUstream_st* stream) {
  with_type(type, [&]<class T>(T) {
    launch("square_sums", square_sums_kernel<T>, dim3(static_cast<unsigned>(groups)),
           dim3(block_threads), 0, stream, sums, static_cast<const T*>(x), count, is_aligned(x),
           accumulate);
  });
}

}  // namespace

void add_block_squares(double* sums, const void* x, Element type, std::int64_t count,
                       CUstream_st* stream) {
  if (count == 0) return;
  square_sums(sums, x, type, count, ceil_div(count, square_block), true, stream);
}

void add_squares(double* total, const void* x, Element type, std::int64_t count, double* workspace,
                 CUstream_st* stream) {
  if (count == 0) return;
  const int groups = square_groups(count);
  square_sums(workspace, x, type, count, groups, false, stream);
  launch("add_terms", add_terms_kernel, dim3(1), dim3(block_threads), 0, stream, total, workspace,
         groups);
}

void round_copy(const float* from, std::int64_t count, const Rounding& copy, CUstream_st* stream) {
  with_type(copy.type, [&]<class T>(T) {
    for_packs("round", 1, count, stream,
              Round<T>{flat_view(from), CopyOut<T>{flat_view<T>(copy.values), copy}});
  });
}

void adamw(float* parameters, float* moment1, float* moment2, const float* gradients,
           std::int64_t count, const AdamWConstants& constants, const Rounding& copy,
           CUstream_st* stream) {
  with_type(copy.type, [&]<class T>(T) {
    for_packs(
        "adamw", 1, count, stream,
        AdamW<T>{flat_view(parameters), flat_view(moment1), flat_view(moment2),
                 flat_view(gradients), constants, CopyOut<T>{flat_view<T>(copy.values), copy}});
  });
}

void sgd(float* parameters, float* momentum_buffer, const float* gradients, std::int64_t count,
         const SgdConstants& constants, const Rounding& copy, CUstream_st* stream) {
  with_type(copy.type, [&]<class T>(T) {
    for_packs("sgd", 1, count, stream,
              Sgd<T>{flat_view(parameters), flat_view(momentum_buffer), flat_view(gradients),
                     constants, CopyOut<T>{flat_view<T>(copy.values), copy}});
  });
}

}  // namespace trireme::ops
