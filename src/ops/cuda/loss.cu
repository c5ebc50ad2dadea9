// The parts of vocabulary-parallel cross-entropy, and the loss; a row of logits per group of
// threads. Rows of an odd vocabulary begin at any alignment: which thread adds an element depends
// on its column alone, so that a row's bits do not depend on its address.
#include <cfloat>

#include "elements.cuh"

namespace trireme::ops {
namespace {

/// Eight elements of 16 bits that begin `Words` words, and perhaps a half, after a boundary.
template <int Words, class T>
__device__ inline void unpack_shifted(float (&x)[pack], const uint4* from, bool half) {
  const uint4 a = from[0], b = from[1];
  const std::uint32_t all[9] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, 0};
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = all[Words + i], high = all[Words + i + 1];
    words[i] = half ? low >> 16 | high << 16 : low;
  }
  unpack(x, PackWords<T>{{{words[0], words[1], words[2], words[3]}}});
}

/// load() for any address: reads the one or two 16-byte words that hold the elements.
template <class T>
__device__ inline void load_anywhere(float (&x)[pack], const T* p, int count) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const auto behind = static_cast<unsigned>(address % 16);
  if (behind == 0 || count < pack || sizeof(T) == 4) {
    load(x, p, count, behind == 0);
    return;
  }
  if constexpr (sizeof(T) == 2) {
    const auto* from = reinterpret_cast<const uint4*>(address - behind);
    const bool half = behind % 4 != 0;
    switch (behind / 4) {  // uniform over the row
      case 0:
        return unpack_shifted<0, T>(x, from, half);
      case 1:
        return unpack_shifted<1, T>(x, from, half);
      case 2:
        return unpack_shifted<2, T>(x, from, half);
      default:
        return unpack_shifted<3, T>(x, from, half);
    }
  }
}

constexpr int ahead = 4;  // packs that a thread loads before it uses the first

__device__ inline int rest_of(std::int64_t c, std::int64_t columns) {
  return columns - c < pack ? static_cast<int>(columns - c) : pack;
}

/// May lose a NaN, which exp_sum then reports.
template <class T, int Threads>
__global__ void row_maximum_kernel(float* maximum, View<T> logits, std::int64_t rows,
                                   std::int64_t columns, bool accumulate) {
  __shared__ float scratch[block_warps];
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    float own = -INFINITY;
    for (std::int64_t c = threadIdx.x * pack; c < columns; c += Threads * pack) {
      float v[pack];
      const int count = rest_of(c, columns);
      load_anywhere(v, logits.at(r, c), count);
#pragma unroll
      for (int i = 0; i < pack; ++i) own = i < count ? fmaxf(own, v[i]) : own;
    }
    own = group_reduce<Threads>(own, scratch, Maximum{});
    if (threadIdx.x == 0) maximum[r] = accumulate ? fmaxf(maximum[r], own) : own;
  }
}

template <class T, int Threads>
__global__ void exp_sum_kernel(float* sum, float* target_logit, View<T> logits,
                               const float* maximum, const std::int32_t* targets,
                               std::int64_t first, std::int64_t rows, std::int64_t columns) {
  __shared__ float scratch[block_warps];
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    const float m = maximum[r];
    float own = 0;
    for (std::int64_t c = threadIdx.x * pack; c < columns; c += Threads * pack) {
      float v[pack];
      const int count = rest_of(c, columns);
      load_anywhere(v, logits.at(r, c), count);
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] = i < count ? expf(v[i] - m) : 0.0F;
      own += pack_sum(v);
    }
    own = group_reduce<Threads>(own, scratch, Plus{});
    if (threadIdx.x == 0) {
      const std::int64_t column = targets[r] - first;
      sum[r] = own;
      target_logit[r] = column >= 0 && column < columns ? to_float(*logits.at(r, column)) : 0.0F;
    }
  }
}

/// Each thread keeps the sum of its elements beside their maximum so far, and scales it where that
/// grows. Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
template <class T, int Threads>
__global__ void softmax_statistics_kernel(float* maximum, float* sum, float* target_logit,
                                          View<T> logits, const std::int32_t* targets,
                                          std::int64_t rows, std::int64_t columns) {
  __shared__ float scratch[block_warps];
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    float largest = -FLT_MAX, own = 0;  // finite: exp(−∞ − largest) is 0
    const auto add = [&](float(&v)[pack], int count) {
      const float before = largest;
#pragma unroll
      for (int i = 0; i < pack; ++i) largest = i < count ? fmaxf(largest, v[i]) : largest;
      if (largest > before) own = rounded_product(own, expf(before - largest));
#pragma unroll
      for (int i = 0; i < pack; ++i) v[i] = i < count ? expf(v[i] - largest) : 0.0F;
      own += pack_sum(v);
    };
    std::int64_t c = threadIdx.x * pack;
    if (logits.aligned) {
      for (; c + (ahead - 1) * Threads * pack + pack <= columns; c += ahead * Threads * pack) {
        PackWords<T> words[ahead];
#pragma unroll
        for (int j = 0; j < ahead; ++j) words[j] = words_at(logits.at(r, c + j * Threads * pack));
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
          float v[pack];
          unpack(v, words[j]);
          add(v, pack);
        }
      }
    }
    for (; c < columns; c += Threads * pack) {
      float v[pack];
      const int count = rest_of(c, columns);
      load_anywhere(v, logits.at(r, c), count);
      add(v, count);
    }
    const float all = group_reduce<Threads>(largest, scratch, Maximum{});
    own = group_reduce<Threads>(largest == all ? own : own * expf(largest - all), scratch, Plus{});
    if (threadIdx.x == 0) {
      const std::int64_t target = targets[r];
      maximum[r] = all;
      sum[r] = own;
      target_logit[r] = target >= 0 && target < columns ? to_float(*logits.at(r, target)) : 0.0F;
    }
  }
}

/// Packs begin at the row's first multiple of 16 bytes, as nothing is summed.
template <class T, int Threads>
__global__ void cross_entropy_gradient_kernel(View<T> logits, const float* maximum,
                                              const float* sum, const std::int32_t* targets,
                                              const float* factor, std::int64_t first,
                                              std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    T* row = logits.at(r, 0);
    std::int64_t head =
        elements_to_boundary(reinterpret_cast<std::uintptr_t>(row), static_cast<int>(sizeof(T)));
    if (head > columns) head = columns;
    const float m = maximum[r], all = factor[r], each = all / sum[r];
    const std::int64_t target = targets[r] - first;
    const auto gradient = [&](float(&v)[pack], std::int64_t c) {
      const auto at = static_cast<int>(target - c);  // rows have fewer than 2³¹ columns
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        v[i] = rounded_product(expf(v[i] - m), each);
        if (i == at) v[i] -= all;
      }
    };
    std::int64_t c = head + threadIdx.x * pack;
    for (; c + (ahead - 1) * Threads * pack + pack <= columns; c += ahead * Threads * pack) {
      PackWords<T> words[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j) words[j] = words_at(row + c + j * Threads * pack);
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        float v[pack];
        unpack(v, words[j]);
        gradient(v, c + j * Threads * pack);
        repack(words_at(row + c + j * Threads * pack), v);
      }
    }
    for (; c < columns; c += Threads * pack) {
      float v[pack];
      const int count = rest_of(c, columns);
      load(v, row + c, count, true);
      gradient(v, c);
      store(row + c, v, count, true);
    }
    if (threadIdx.x == 0 && head > 0) {
      float v[pack];
      load(v, row, static_cast<int>(head), false);
      gradient(v, 0);
      store(row, v, static_cast<int>(head), false);
    }
  }
}

__global__ void weighted_loss_kernel(double* total, std::int64_t rows, const float* sum,
                                     const float* maximum, const float* target_logit,
                                     const float* weights) {
  __shared__ double scratch[block_warps];
  double own = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += block_threads) {
    const double difference =
        static_cast<double>(maximum[r]) - static_cast<double>(target_logit[r]);
    own += static_cast<double>(weights[r]) * (log(static_cast<double>(sum[r])) + difference);
  }
  own = group_reduce<block_threads>(own, scratch, Plus{});
  if (threadIdx.x == 0) *total += own;
}

}  // namespace

void row_maximum(float* maximum, const Matrix& logits, bool accumulate, CUstream_st* stream) {
  if (logits.rows == 0) return;
  with_type(logits.type, [&]<class T>(T) {
    with_group(logits.columns, [&]<class Group>(Group) {
      launch("row_maximum", row_maximum_kernel<T, Group::threads>, Group::grid(logits.rows),
             Group::block(), 0, stream, maximum, view<T>(logits), logits.rows, logits.columns,
             accumulate);
    });
  });
}

void exp_sum_and_target(float* sum, float* target_logit, const Matrix& logits, const float* maximum,
                        const std::int32_t* targets, std::int64_t first, CUstream_st* stream) {
  if (logits.rows == 0) return;
  with_type(logits.type, [&]<class T>(T) {
    with_group(logits.columns, [&]<class Group>(Group) {
      launch("exp_sum_and_target", exp_sum_kernel<T, Group::threads>, Group::grid(logits.rows),
             Group::block(), 0, stream, sum, target_logit, view<T>(logits), maximum, targets, first,
             logits.rows, logits.columns);
    });
  });
}

void softmax_statistics(float* maximum, float* sum, float* target_logit, const Matrix& logits,
                        const std::int32_t* targets, CUstream_st* stream) {
  if (logits.rows == 0) return;
  with_type(logits.type, [&]<class T>(T) {
    with_group(logits.columns, [&]<class Group>(Group) {
      launch("softmax_statistics", softmax_statistics_kernel<T, Group::threads>,
             Group::grid(logits.rows), Group::block(), 0, stream, maximum, sum, target_logit,
             view<T>(logits), targets, logits.rows, logits.columns);
    });
  });
}

void cross_entropy_gradient(const Matrix& logits, const float* maximum, const float* sum,
                            const std::int32_t* targets, const float* factor, std::int64_t first,
                            CUstream_st* stream) {
  if (logits.rows == 0 || logits.columns == 0) return;
  with_type(logits.type, [&]<class T>(T) {
    with_group(logits.columns, [&]<class Group>(Group) {
      launch("cross_entropy_gradient", cross_entropy_gradient_kernel<T, Group::threads>,
             Group::grid(logits.rows), Group::block(), 0, stream, view<T>(logits), maximum, sum,
             targets, factor, first, logits.rows, logits.columns);
    });
  });
}

void weighted_loss(double* total, std::int64_t rows, const float* sum, const float* maximum,
                   const float* target_logit, const float* weights, CUstream_st* stream) {
  if (rows == 0) return;
  launch("weighted_loss", weighted_loss_kernel, dim3(1), dim3(block_threads), 0, stream, total,
         rows, sum, maximum, target_logit, weights);
}

}  // namespace trireme::ops
