#include "trireme/core/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

/// The middle of the cell of `word` in [0, 1): exact in fp64, never 0 or 1.
double unit_interval(std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// No branches and no calls, so that compilers make vector code of loops over it. Each operation is
// exactly rounded and none is contracted: scalars and vectors of any length give the same bits.

/// log x for normal x > 0: x = m·2^e with m in [√½, √2), log m = 2·artanh s with s = (m−1)/(m+1).
/// |s| < 0.1716, so the first term left out of the odd series, s^25/25, is below 1e-20.
inline double fixed_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  constexpr std::uint64_t mantissa = (std::uint64_t{1} << 52) - 1;
  // [1/2, 1), and twice that where it is below √½.
  const double half = std::bit_cast<double>((bits & mantissa) | (std::uint64_t{1022} << 52));
  const bool low = half < 0.70710678118654752440;
  const double m = low ? half * 2 : half;
  // The exponent as a double without a conversion of 64-bit integers: 2^52 + e, less 2^52.
  const double biased = std::bit_cast<double>((bits >> 52) | (std::uint64_t{1075} << 52)) - 0x1p52;
  const double exponent = biased - (low ? 1023 : 1022);
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double series = 0;
#pragma GCC unroll 12
  for (int k = 23; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return exponent * 0.69314718055994530942 + 2 * s * series;
}

/// cos 2πu for u in [0, 1). The nearest quarter turn is taken off exactly, which leaves |a| ≤ π/4,
/// where Taylor's series to a^19 and a^18 have remainders below 1e-19 of the value.
inline double fixed_cos_turns(double u) {
  // ⌊4u + ½⌋: 0, 1, 2, 3 or 4.
  const double v = 4 * u + 0.5;
  const double quarter =
      (v >= 1 ? 1.0 : 0.0) + (v >= 2 ? 1.0 : 0.0) + (v >= 3 ? 1.0 : 0.0) + (v >= 4 ? 1.0 : 0.0);
  const double a = 6.28318530717958647693 * (u - quarter * 0.25);
  const double a2 = a * a;
  double sine = 1;
  double cosine = 1;
#pragma GCC unroll 9
  for (int k = 18; k >= 2; k -= 2) {
    sine = 1 - sine * a2 / (k * (k + 1));
    cosine = 1 - cosine * a2 / (k * (k - 1));
  }
  sine *= a;
  const bool of_sine = quarter == 1 || quarter == 3;
  const double size = of_sine ? sine : cosine;
  return quarter == 1 || quarter == 2 ? -size : size;
}

/// Box–Muller.
inline double normal_of(std::uint32_t radius, std::uint32_t angle) {
  return std::sqrt(-2 * fixed_log(unit_interval(radius))) * fixed_cos_turns(unit_interval(angle));
}

constexpr std::uint32_t multiplier1 = 0xD2511F53U, multiplier2 = 0xCD9E8D57U;
constexpr std::uint32_t weyl1 = 0x9E3779B9U, weyl2 = 0xBB67AE85U;

/// Blocks that `normal_blocks` works on at a time: two normals of each.
constexpr std::size_t batch_blocks = 64;

/// normal() of blocks [first, first + batch_blocks) of a stream, on the machine's widest vectors.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#endif
void normal_blocks(const RandomKey& key, std::uint64_t first, double* out) {
  std::uint32_t word[4][batch_blocks];
  for (std::size_t i = 0; i < batch_blocks; ++i) {
    word[0][i] = low(first + i);
    word[1][i] = high(first + i);
    word[2][i] = static_cast<std::uint32_t>(key.purpose);
    word[3][i] = key.stream;
  }
  std::uint32_t key1 = low(key.seed), key2 = high(key.seed);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < batch_blocks; ++i) {
      const std::uint64_t product1 = std::uint64_t{multiplier1} * word[0][i];
      const std::uint64_t product2 = std::uint64_t{multiplier2} * word[2][i];
      word[0][i] = high(product2) ^ word[1][i] ^ key1;
      word[1][i] = low(product2);
      word[2][i] = high(product1) ^ word[3][i] ^ key2;
      word[3][i] = low(product1);
    }
    key1 += weyl1;
    key2 += weyl2;
  }
  double even[batch_blocks], odd[batch_blocks];
  for (std::size_t i = 0; i < batch_blocks; ++i) even[i] = normal_of(word[0][i], word[1][i]);
  for (std::size_t i = 0; i < batch_blocks; ++i) odd[i] = normal_of(word[2][i], word[3][i]);
  for (std::size_t i = 0; i < batch_blocks; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{multiplier1} * counter[0];
    const std::uint64_t second = std::uint64_t{multiplier2} * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1],
               low(first)};
    key[0] += weyl1;
    key[1] += weyl2;
  }
  return counter;
}

std::array<std::uint32_t, 4> random_block(const RandomKey& key, std::uint64_t block) {
  return philox({low(block), high(block), static_cast<std::uint32_t>(key.purpose), key.stream},
                {low(key.seed), high(key.seed)});
}

std::uint32_t random_bits(const RandomKey& key, std::uint64_t index) {
  return random_block(key, index / 4)[index % 4];
}

float uniform(const RandomKey& key, std::uint64_t index) {
  const auto value = static_cast<float>(unit_interval(random_bits(key, index)));
  return value < 1.0F ? value : 0x1.fffffep-1F;
}

double normal(const RandomKey& key, std::uint64_t index) {
  const std::array<std::uint32_t, 4> block = random_block(key, index / 2);
  const std::size_t word = 2 * (index % 2);
  return normal_of(block[word], block[word + 1]);
}

void normals(const RandomKey& key, std::uint64_t first, std::span<double> out) {
  constexpr std::uint64_t batch = 2 * batch_blocks;
  std::uint64_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first + done, skipped = index % 2;
    const std::uint64_t count = std::min<std::uint64_t>(batch - skipped, out.size() - done);
    if (count == batch) {
      normal_blocks(key, index / 2, out.data() + done);
    } else {
      double some[batch];
      normal_blocks(key, index / 2, some);
      std::copy_n(some + skipped, count, out.data() + done);
    }
    done += count;
  }
}

std::uint64_t permute(const RandomKey& key, std::uint64_t index, std::uint64_t size) {
  TRIREME_ASSERT(index < size, "index {} of {}", index, size);
  int half = 0;  // bits of each half; 4^half ≥ size
  while (half < 32 && ((size - 1) >> (2 * half)) != 0) ++half;
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << half) - 1);
  std::uint64_t image = index;
  do {
    auto left = static_cast<std::uint32_t>(image >> half);
    auto right = static_cast<std::uint32_t>(image) & mask;
    for (std::uint32_t round = 0; round < 8; ++round) {
      // The top bit keeps these counters apart from those of random_block for blocks below 2^63.
      const std::uint32_t mixed =
          philox({right, 0x80000000U | round, static_cast<std::uint32_t>(key.purpose), key.stream},
                 {low(key.seed), high(key.seed)})[0];
      const std::uint32_t next = (left ^ mixed) & mask;
      left = right;
      right = next;
    }
    image = (std::uint64_t{left} << half) | right;
  } while (image >= size);
  return image;
}

}  // namespace trireme
