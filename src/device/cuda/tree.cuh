// The tree of device/reduce_tree.hpp over the contributions to one stretch of elements, as a kernel's
// thread adds them: bit by bit what the host gives, but for what a NaN carries. Plain C++ where nvcc
// does not read it, so that a test on any machine can compare the two.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TRIREME_ON_DEVICE __host__ __device__ __forceinline__
#else
#define TRIREME_ON_DEVICE inline
#endif

namespace trireme::device::kernels {

template <class To, class From>
TRIREME_ON_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// How a type is stored and what it is added in; conversions are those of core/half.hpp.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  TRIREME_ON_DEVICE static Value load(Stored x) { return x; }
  TRIREME_ON_DEVICE static Stored store(Value x) { return x; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Value = float;
  TRIREME_ON_DEVICE static Value load(Stored x) { return bits_as<float>(std::uint32_t{x} << 16); }
  TRIREME_ON_DEVICE static Stored store(Value x) {
    const auto bits = bits_as<std::uint32_t>(x);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<Stored>((bits >> 16) | 0x40U);
    return static_cast<Stored>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Value = float;
  TRIREME_ON_DEVICE static Value load(Stored x) {
    const std::uint32_t sign = std::uint32_t{x & 0x8000U} << 16;
    const std::uint32_t magnitude = x & 0x7fffU;
    if (magnitude < 0x0400U) {
      const float small = static_cast<float>(magnitude) * 5.9604644775390625e-8F;  // 2^-24
      return bits_as<float>(sign | bits_as<std::uint32_t>(small));
    }
    const std::uint32_t bias = magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U;
    return bits_as<float>(sign | ((magnitude << 13) + bias));
  }
  TRIREME_ON_DEVICE static Stored store(Value x) {
    const auto bits = bits_as<std::uint32_t>(x);
    const auto sign = static_cast<Stored>((bits >> 16) & 0x8000U);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    std::uint32_t result = 0;
    if (magnitude > 0x7f800000U) {
      result = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    } else if (magnitude >= 0x477ff000U) {
      result = 0x7c00U;
    } else if (magnitude < 0x38800000U) {
      result = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - 0x3f000000U;
    } else {
      result = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    return static_cast<Stored>(sign | result);
  }
};

struct Sum {
  template <class T>
  TRIREME_ON_DEVICE static T join(T a, T b) {
    return a + b;
  }
  TRIREME_ON_DEVICE static std::int64_t join(std::int64_t a, std::int64_t b) {  // wraps round
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct Max {
  template <class T>
  TRIREME_ON_DEVICE static T join(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

/// Up to `most` contributions anywhere.
template <int most>
struct List {
  const char* at[most];
  TRIREME_ON_DEVICE const char* operator()(int rank) const { return at[rank]; }
};
/// Any number at even distances but for one, as a communicator's scratch memory has them.
struct Lanes {
  const char* base;
  std::int64_t stride;
  const char* own_data;
  int own;
  TRIREME_ON_DEVICE const char* operator()(int rank) const {
    if (rank == own) return own_data;
    return base + (rank < own ? rank : rank - 1) * stride;
  }
};

/// Whether the contributions lie so, and how.
inline bool find_lanes(const std::byte* const* at, int ranks, Lanes& lanes) {
  if (ranks < 3) return false;
  const auto place = [&](int rank) { return reinterpret_cast<const char*>(at[rank]); };
  const auto distance = [&](int from, int to) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(at[to]) -
                                     reinterpret_cast<std::intptr_t>(at[from]));
  };
  // The odd one out is the first, the second, or the first that breaks the distance of these.
  int first_break = 2;
  while (first_break < ranks && distance(0, first_break) == first_break * distance(0, 1)) {
    ++first_break;
  }
  const int candidates[] = {0, 1, first_break < ranks ? first_break : 0};
  for (const int own : candidates) {
    const int first = own == 0 ? 1 : 0;
    const int second = own <= 1 ? 2 : 1;
    const std::int64_t stride = distance(first, second);
    bool fits = true;
    for (int rank = 0; fits && rank < ranks; ++rank) {
      const int lane = rank < own ? rank : rank - 1;
      fits = rank == own || distance(first, rank) == lane * stride;
    }
    if (!fits) continue;
    lanes = {place(first), stride, place(own), own};
    return true;
  }
  return false;
}

/// 16 bytes, or one element.
template <class Stored, int width>
struct alignas(sizeof(Stored) * width) Pack {
  Stored element[width];
};

/// Elements [first, first + width) of all contributions. `fixed`: the number of ranks, known to the
/// compiler, so that partial sums stay in registers; 0: `ranks`.
template <class Type, class Join, int fixed, int width, class Source>
TRIREME_ON_DEVICE void add_stretch(const Source& from, int ranks, void* out, std::int64_t first) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  using Elements = Pack<Stored, width>;
  constexpr int depth = fixed > 0 ? 4 : 24;
  Value partial[depth][width];
  int top = 0;
  const int count = fixed > 0 ? fixed : ranks;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int rank = 0; rank < count; ++rank) {
    const auto pack =
        *reinterpret_cast<const Elements*>(from(rank) + first * static_cast<int>(sizeof(Stored)));
    Value value[width];
    for (int i = 0; i < width; ++i) value[i] = Type::load(pack.element[i]);
    // Two sums of as many ranks become one: a binary counter.
    for (int bits = rank; (bits & 1) != 0; bits >>= 1) {
      --top;
      for (int i = 0; i < width; ++i) value[i] = Join::join(partial[top][i], value[i]);
    }
    for (int i = 0; i < width; ++i) partial[top][i] = value[i];
    ++top;
  }
  for (--top; top > 0; --top) {
    for (int i = 0; i < width; ++i) {
      partial[top - 1][i] = Join::join(partial[top - 1][i], partial[top][i]);
    }
  }
  Elements result;
  for (int i = 0; i < width; ++i) result.element[i] = Type::store(partial[0][i]);
  *reinterpret_cast<Elements*>(static_cast<char*>(out) + first * static_cast<int>(sizeof(Stored))) =
      result;
}

}  // namespace trireme::device::kernels
