// Philox4x32-10 on vectors: the bits of trireme::random_block, many blocks at once.
#if defined(TRIREME_OPS_CPU_RANDOM_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPS_CPU_RANDOM_INL_HPP
#undef TRIREME_OPS_CPU_RANDOM_INL_HPP
#else
#define TRIREME_OPS_CPU_RANDOM_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "trireme/core/random.hpp"
#include "trireme/ops/ops.hpp"

#include "simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace trireme::ops {
namespace HWY_NAMESPACE {

using WordTag = hn::ScalableTag<std::uint32_t>;
using WideTag = hn::ScalableTag<std::uint64_t>;
using Wide = hn::Vec<WideTag>;

/// The 64-bit product of the low halves of each 64-bit lane; the high halves are ignored.
HWY_INLINE Wide low_product(Wide a, Wide b) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t low = 0xFFFFFFFFU;
  return hn::Set(WideTag(), (hn::GetLane(a) & low) * (hn::GetLane(b) & low));
#else
  const WordTag words;
  return hn::MulEven(hn::BitCast(words, a), hn::BitCast(words, b));
#endif
}

/// One block of four words per 64-bit lane: counter words in the low halves.
struct Blocks {
  Wide c0, c1, c2, c3;
};

HWY_INLINE void philox_round(Blocks& b, Wide key0, Wide key1) {
  const WideTag d;
  const Wide product0 = low_product(b.c0, hn::Set(d, std::uint64_t{0xD2511F53U}));
  const Wide product1 = low_product(b.c2, hn::Set(d, std::uint64_t{0xCD9E8D57U}));
  b.c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), b.c1), key0);
  b.c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), b.c3), key1);
  b.c1 = product1;
  b.c3 = product0;
}

HWY_INLINE void store_blocks(const Blocks& b, std::uint32_t* words) {
  const WideTag d;
  const Wide low = hn::Set(d, std::uint64_t{0xFFFFFFFFU});
  const Wide words01 = hn::Or(hn::And(b.c0, low), hn::ShiftLeft<32>(b.c1));
  const Wide words23 = hn::Or(hn::And(b.c2, low), hn::ShiftLeft<32>(b.c3));
  HWY_ALIGN std::uint64_t pairs[2 * hn::MaxLanes(WideTag())];
  hn::StoreInterleaved2(words01, words23, d, pairs);
  std::memcpy(words, pairs, sizeof(pairs));
}

/// Words [4·first, 4·(first + blocks)) of the stream of `key`. Writes whole vectors: up to
/// 8·MaxLanes(WideTag()) words more.
HWY_INLINE void random_words(const RandomKey& key, std::uint64_t first, std::size_t blocks,
                             std::uint32_t* words) {
  const WideTag d;
  const std::size_t lanes = hn::Lanes(d);
  const Wide purpose = hn::Set(d, static_cast<std::uint64_t>(key.purpose));
  const Wide stream = hn::Set(d, std::uint64_t{key.stream});
  const Wide lane = hn::Iota(d, std::uint64_t{0});
  // Two vectors of blocks at a time, to hide the multiplications' latency.
  for (std::size_t block = 0; block < blocks; block += 2 * lanes) {
    const Wide index_a = hn::Add(hn::Set(d, first + block), lane);
    const Wide index_b = hn::Add(hn::Set(d, first + block + lanes), lane);
    Blocks a{index_a, hn::ShiftRight<32>(index_a), purpose, stream};
    Blocks b{index_b, hn::ShiftRight<32>(index_b), purpose, stream};
    auto key0 = static_cast<std::uint32_t>(key.seed);
    auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const Wide round0 = hn::Set(d, std::uint64_t{key0});
      const Wide round1 = hn::Set(d, std::uint64_t{key1});
      philox_round(a, round0, round1);
      philox_round(b, round0, round1);
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    store_blocks(a, words + 4 * block);
    store_blocks(b, words + 4 * (block + lanes));
  }
}

/// body(i, access, factor) over [0, n): the dropout's 0 or 1/(1 − rate) of element `index + i`.
template <class Body>
HWY_INLINE void for_dropout(const Dropout& dropout, std::uint64_t index, std::size_t n,
                            const Body& body) {
  constexpr std::size_t chunk = 256;
  HWY_ALIGN std::uint32_t words[chunk + 8 * hn::MaxLanes(WideTag())];
  const FloatTag d;
  const WordTag bits;
  const auto threshold =
      hn::Set(bits, static_cast<std::uint32_t>(std::ceil(double{dropout.rate} * 4294967296.0)));
  const Floats factor = hn::Set(d, 1.0F / (1.0F - dropout.rate));
  for (std::size_t begin = 0; begin < n;) {
    const std::size_t skip = (index + begin) % 4;
    const std::size_t count = std::min(chunk - skip, n - begin);
    random_words(dropout.key, (index + begin) / 4, (skip + count + 3) / 4, words);
    for_vectors(count, [&](std::size_t i, auto access) HWY_ATTR {
      const auto dropped = hn::Lt(access.load(bits, words + skip + i), threshold);
      body(begin + i, access, hn::IfThenZeroElse(hn::RebindMask(d, dropped), factor));
    });
    begin += count;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace trireme::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
