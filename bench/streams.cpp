#include "streams.hpp"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>
#include <omp.h>

#include "trireme/core/error.hpp"

#include "../src/ops/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/streams.cpp"  // from the include folder
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace trireme::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Elements [begin, end), multiples of a cache line. Writes the maximum of the values
/// read, 16 bits at a time: tensors of fp32 or bf16 keep their range of values.
/// Returns the maximum of all if nothing is written, so that the reads are not removed.
template <int reads, int writes, int updates, bool halves>
std::uint16_t stream_range(std::uint16_t* const* tensors, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<std::uint16_t> d;
  const hn::Half<decltype(d)> half;
  using Vector = hn::Vec<decltype(d)>;
  constexpr std::size_t unroll = 4;
  const std::size_t lanes = hn::Lanes(d);
  Vector greatest[unroll] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (std::size_t i = begin; i + unroll * lanes <= end; i += unroll * lanes) {
    for (std::size_t j = 0; j < unroll; ++j) {
      const std::size_t at = i + j * lanes;
      Vector all = hn::Zero(d);
      for (int k = 0; k < reads; ++k) all = hn::Max(all, hn::Load(d, tensors[k] + at));
      for (int k = reads; k < reads + writes; ++k) hn::Stream(all, d, tensors[k] + at);
      for (int k = reads + writes; k < reads + writes + updates; ++k) {
        hn::Store(hn::Max(hn::Load(d, tensors[k] + at), all), d, tensors[k] + at);
      }
      if (halves) {
        hn::Stream(hn::LowerHalf(half, all), half, tensors[reads + writes + updates] + at / 2);
      }
      if (writes + updates == 0) greatest[j] = hn::Max(greatest[j], all);
    }
  }
  HWY_ALIGN std::uint16_t each[hn::MaxLanes(d)];
  hn::Store(hn::Max(hn::Max(greatest[0], greatest[1]), hn::Max(greatest[2], greatest[3])), d, each);
  return *std::max_element(each, each + lanes);
}
constexpr auto& read_one = stream_range<1, 0, 0, false>;
constexpr auto& read_two = stream_range<2, 0, 0, false>;
constexpr auto& copy_one = stream_range<1, 1, 0, false>;
constexpr auto& add_two = stream_range<2, 1, 0, false>;
constexpr auto& three_to_two = stream_range<3, 2, 0, false>;
constexpr auto& update_one = stream_range<0, 0, 1, false>;
constexpr auto& add_two_to_one = stream_range<2, 0, 1, false>;
constexpr auto& update_three = stream_range<1, 0, 3, false>;
constexpr auto& update_three_and_halves = stream_range<1, 0, 3, true>;

}  // namespace HWY_NAMESPACE
}  // namespace trireme::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::bench {

HWY_EXPORT(read_one);
HWY_EXPORT(read_two);
HWY_EXPORT(copy_one);
HWY_EXPORT(add_two);
HWY_EXPORT(three_to_two);
HWY_EXPORT(update_one);
HWY_EXPORT(add_two_to_one);
HWY_EXPORT(update_three);
HWY_EXPORT(update_three_and_halves);

namespace {

using Range = std::uint16_t (*)(std::uint16_t* const*, std::size_t, std::size_t);

Range range_of(const Streams& s) {
  const std::pair<Streams, Range> all[] = {
      {{1, 0, 0}, HWY_DYNAMIC_DISPATCH(read_one)},
      {{2, 0, 0}, HWY_DYNAMIC_DISPATCH(read_two)},
      {{1, 1, 0}, HWY_DYNAMIC_DISPATCH(copy_one)},
      {{2, 1, 0}, HWY_DYNAMIC_DISPATCH(add_two)},
      {{3, 2, 0}, HWY_DYNAMIC_DISPATCH(three_to_two)},
      {{0, 0, 1}, HWY_DYNAMIC_DISPATCH(update_one)},
      {{2, 0, 1}, HWY_DYNAMIC_DISPATCH(add_two_to_one)},
      {{1, 0, 3}, HWY_DYNAMIC_DISPATCH(update_three)},
      {{1, 0, 3, true}, HWY_DYNAMIC_DISPATCH(update_three_and_halves)}};
  for (const auto& [streams, range] : all) {
    if (streams == s) return range;
  }
  throw Error("streams: no loop of {}", name_of(s));
}

}  // namespace

std::string name_of(const Streams& s) {
  std::string text;
  const auto add = [&](int count, char what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(s.reads, 'r');
  add(s.writes, 'w');
  add(s.updates, 'u');
  return text + (s.halves ? ", ½ w" : "");
}

void run_streams(const Streams& streams, std::span<std::uint16_t* const> tensors,
                 std::size_t elements) {
  const Range range = range_of(streams);
  const int all = streams.reads + streams.writes + streams.updates + (streams.halves ? 1 : 0);
  const auto count = static_cast<std::size_t>(all);
  TRIREME_ASSERT(tensors.size() >= count, "{} tensors for {}", tensors.size(), name_of(streams));
  constexpr std::size_t block = 1024;  // elements: whole cache lines of every tensor
  const std::size_t blocks = elements / block;
  static std::atomic<std::uint16_t> read;  // keeps the compiler from removing the reads
#pragma omp parallel
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    const auto threads = static_cast<std::size_t>(omp_get_num_threads());
    const std::uint16_t greatest = range(tensors.data(), blocks * thread / threads * block,
                                         blocks * (thread + 1) / threads * block);
    hwy::FlushStream();
    read.store(greatest, std::memory_order_relaxed);
  }
}

}  // namespace trireme::bench
#endif  // HWY_ONCE
