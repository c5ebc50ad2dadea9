// Contributions of several ranks added on the device, in reduce_tree's order. Bound by memory: each
// contribution is read once, 16 bytes at a time where all are so aligned. Conversions likewise.
#include <algorithm>

#include <cuda_runtime_api.h>

#include "tree.cuh"

namespace trireme::device {
namespace {

using namespace kernels;

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 4096;  // more elements: each thread takes several
constexpr int most_listed = 64;

template <class Type, class Join, int fixed, int width, class Source>
__global__ void __launch_bounds__(threads)
    reduce_kernel(Source from, int ranks, void* out, std::int64_t begin, std::int64_t packs) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < packs;
       i += step) {
    add_stretch<Type, Join, fixed, width>(from, ranks, out, begin + i * width);
  }
}

struct Work {
  const std::byte* const* contributions;
  int ranks;
  void* out;
  std::int64_t elements;
  CUstream_st* stream;
};

template <class Type, class Join, int fixed, int width, class Source>
void launch(const Work& work, const Source& from, std::int64_t begin, std::int64_t packs) {
  if (packs == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(most_blocks, (packs + threads - 1) / threads));
  reduce_kernel<Type, Join, fixed, width>
      <<<blocks, threads, 0, work.stream>>>(from, work.ranks, work.out, begin, packs);
}

template <int most>
List<most> listed(const Work& work) {
  List<most> list{};
  for (int r = 0; r < work.ranks; ++r) {
    list.at[r] = reinterpret_cast<const char*>(work.contributions[r]);
  }
  return list;
}

bool aligned(const Work& work) {
  auto bits = reinterpret_cast<std::uintptr_t>(work.out);
  for (int r = 0; r < work.ranks; ++r) {
    bits |= reinterpret_cast<std::uintptr_t>(work.contributions[r]);
  }
  return bits % 16 == 0;
}

/// Elements from `begin` on, `width` at a time; returns the first that is left.
template <class Type, class Join, int width>
std::int64_t take(const Work& work, std::int64_t begin) {
  const std::int64_t packs = (work.elements - begin) / width;
  Lanes lanes{};
  if constexpr (width > 1) {  // numbers of ranks in a node
    if (work.ranks == 2) launch<Type, Join, 2, width>(work, listed<2>(work), begin, packs);
    if (work.ranks == 4) launch<Type, Join, 4, width>(work, listed<4>(work), begin, packs);
    if (work.ranks == 8) launch<Type, Join, 8, width>(work, listed<8>(work), begin, packs);
    if (work.ranks == 2 || work.ranks == 4 || work.ranks == 8) return begin + packs * width;
  }
  if (work.ranks <= most_listed) {
    launch<Type, Join, 0, width>(work, listed<most_listed>(work), begin, packs);
  } else {
    find_lanes(work.contributions, work.ranks, lanes);
    launch<Type, Join, 0, width>(work, lanes, begin, packs);
  }
  return begin + packs * width;
}

template <class Type>
void reduce(const Work& work, bool maximum) {
  constexpr int width = 16 / static_cast<int>(sizeof(typename Type::Stored));
  if (maximum) {  // rare, and of few elements
    take<Type, Max, 1>(work, 0);
    return;
  }
  const std::int64_t done = aligned(work) ? take<Type, Sum, width>(work, 0) : 0;
  take<Type, Sum, 1>(work, done);
}

template <class To, class From, int width>
__global__ void __launch_bounds__(threads)
    convert_kernel(void* to, const void* from, std::int64_t begin, std::int64_t packs) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < packs;
       i += step) {
    convert_stretch<To, From, width>(to, from, begin + i * width);
  }
}

/// Elements from `begin` on, `width` at a time; returns the first that is left.
template <class To, class From, int width>
std::int64_t convert(void* to, const void* from, std::int64_t begin, std::int64_t elements,
                     CUstream_st* stream) {
  const std::int64_t packs = (elements - begin) / width;
  if (packs == 0) return begin;
  const auto blocks = static_cast<unsigned>(std::min(most_blocks, (packs + threads - 1) / threads));
  convert_kernel<To, From, width><<<blocks, threads, 0, stream>>>(to, from, begin, packs);
  return begin + packs * width;
}

}  // namespace

int queue_convert(DType to_type, void* to, const void* from, std::int64_t elements,
                  CUstream_st* stream) {
  constexpr int width = 4;  // 16 bytes of fp32, 8 of bf16
  const bool converts = with_converted(to_type, [&]<class To, class From>(To, From) {
    const auto aligned = [](const void* at, std::size_t bytes) {
      return reinterpret_cast<std::uintptr_t>(at) % (width * bytes) == 0;
    };
    const bool wide =
        aligned(to, sizeof(typename To::Stored)) && aligned(from, sizeof(typename From::Stored));
    const std::int64_t done =
        wide ? convert<To, From, width>(to, from, 0, elements, stream) : std::int64_t{0};
    convert<To, From, 1>(to, from, done, elements, stream);
  });
  return converts ? cudaPeekAtLastError() : cudaErrorInvalidValue;
}

int queue_reduce(DType type, bool maximum, const std::byte* const* contributions, int ranks,
                 void* out, std::int64_t elements, CUstream_st* stream) {
  const Work work{contributions, ranks, out, elements, stream};
  Lanes lanes{};
  if (ranks < 1 || (ranks > most_listed && !find_lanes(contributions, ranks, lanes))) {
    return cudaErrorInvalidValue;
  }
  const bool reduces = with_reduced(type, [&]<class Type>(Type) { reduce<Type>(work, maximum); });
  return reduces ? cudaPeekAtLastError() : cudaErrorInvalidValue;
}

}  // namespace trireme::device
