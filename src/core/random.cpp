#include "trireme/core/random.hpp"

#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

/// The middle of the cell of `word` in [0, 1): exact in fp64, never 0 or 1.
double unit_interval(std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

/// log x for finite x > 0: x = m·2^e with m in [√½, √2), log m = 2·artanh s with s = (m−1)/(m+1).
/// |s| < 0.1716, so the first term left out of the odd series, s^25/25, is below 1e-20.
double fixed_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [1/2, 1)
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * s2 + 1.0 / k;
  return exponent * 0.69314718055994530942 + 2 * s * series;
}

/// cos 2πu for u in [0, 1). The nearest quarter turn is taken off exactly, which leaves |a| ≤ π/4,
/// where Taylor's series to a^19 and a^18 have remainders below 1e-19 of the value.
double fixed_cos_turns(double u) {
  const double quarter = std::floor(4 * u + 0.5);
  const double a = 6.28318530717958647693 * (u - quarter * 0.25);
  const double a2 = a * a;
  double sine = 1;
  double cosine = 1;
  for (int k = 18; k >= 2; k -= 2) {
    sine = 1 - sine * a2 / (k * (k + 1));
    cosine = 1 - cosine * a2 / (k * (k - 1));
  }
  sine *= a;
  switch (static_cast<int>(quarter) % 4) {
    case 0:
      return cosine;
    case 1:
      return -sine;
    case 2:
      return -cosine;
    default:
      return sine;
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1],
               low(first)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
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
  const double radius = std::sqrt(-2 * fixed_log(unit_interval(block[word])));
  return radius * fixed_cos_turns(unit_interval(block[word + 1]));
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
