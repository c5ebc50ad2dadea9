// The types and operations of a reduction, for the host's loops and for kernels, and reduce_tree's
// tree over the contributions to one stretch of elements, as a
// kernel's thread adds them: bit by bit what the host gives, but for what a NaN carries. Plain C++
// where nvcc does not read it, so that a test on any machine can compare the two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/half.hpp"

struct CUstream_st;

namespace trireme::device {

/// Queue::reduce on CUDA: queues the reduction on `stream`. A cudaError_t: cudaErrorInvalidValue
/// for a type that is not reduced, for no contributions, and for more than 64 that are not at even
/// distances but for one.
int queue_reduce(DType type, bool maximum, const std::byte* const* contributions, int ranks,
                 void* out, std::int64_t elements, CUstream_st* stream);
/// Queue::convert on CUDA. A cudaError_t: cudaErrorInvalidValue for a type to which nothing is
/// converted.
int queue_convert(DType to_type, void* to, const void* from, std::int64_t elements,
                  CUstream_st* stream);

}  // namespace trireme::device

namespace trireme::device::kernels {

// How a type is stored and what it is added in.
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
  TRIREME_ON_DEVICE static Value load(Stored x) { return bf16_to_float(x); }
  TRIREME_ON_DEVICE static Stored store(Value x) { return float_to_bf16(x); }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Value = float;
  TRIREME_ON_DEVICE static Value load(Stored x) { return fp16_to_float(x); }
  TRIREME_ON_DEVICE static Stored store(Value x) { return float_to_fp16(x); }
};

/// use(how) with how each type that is reduced is stored; whether `type` is one.
template <class Use>
bool with_reduced(DType type, const Use& use) {
  switch (type) {
    case DType::f32:
      use(Plain<float>{});
      return true;
    case DType::f64:
      use(Plain<double>{});
      return true;
    case DType::i64:
      use(Plain<std::int64_t>{});
      return true;
    case DType::bf16:
      use(Bf16{});
      return true;
    case DType::f16:
      use(Fp16{});
      return true;
    default:
      return false;
  }
}

/// use(to, from) with how the types of a conversion are stored; whether there is one to `type`.
template <class Use>
bool with_converted(DType type, const Use& use) {
  if (type == DType::bf16) {
    use(Bf16{}, Plain<float>{});
  } else if (type == DType::f32) {
    use(Plain<float>{}, Bf16{});
  } else {
    return false;
  }
  return true;
}

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
    return a > b || a != a ? a : b;  // a NaN on either side stays
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

/// Whether the contributions are placed so, and where.
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

/// Elements [first, first + width) of a conversion.
template <class To, class From, int width>
TRIREME_ON_DEVICE void convert_stretch(void* to, const void* from, std::int64_t first) {
  using Read = Pack<typename From::Stored, width>;
  using Written = Pack<typename To::Stored, width>;
  const auto pack =
      *reinterpret_cast<const Read*>(static_cast<const typename From::Stored*>(from) + first);
  Written result;
  for (int i = 0; i < width; ++i) result.element[i] = To::store(From::load(pack.element[i]));
  *reinterpret_cast<Written*>(static_cast<typename To::Stored*>(to) + first) = result;
}

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
