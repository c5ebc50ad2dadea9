#include "trireme/data/sampler.hpp"

#include <algorithm>
#include <array>

#include "trireme/core/error.hpp"
#include "trireme/core/random.hpp"

namespace trireme::data {
namespace {

/// Below `bound`, from 64 random bits: uneven by less than bound / 2^64.
std::uint64_t draw_below(std::uint64_t bound, const RandomKey& key, std::uint64_t block) {
  const std::array<std::uint32_t, 4> words = random_block(key, block);
  return (std::uint64_t{words[1]} << 32 | words[0]) % bound;
}

}  // namespace

EpochSeeds epoch_seeds(std::uint64_t seed, std::uint64_t epoch) {
  const std::array<std::uint32_t, 4> words = random_block({seed, Purpose::sample_order, 0}, epoch);
  return {std::uint64_t{words[1]} << 32 | words[0], std::uint64_t{words[3]} << 32 | words[2]};
}

Sampler::Sampler(std::int64_t tokens, std::int64_t length, std::int64_t group_tokens,
                 std::uint64_t seed, bool shuffle)
    : length_(length), group_windows_(0), windows_(0), slack_(0), seed_(seed), shuffle_(shuffle) {
  if (length < 1)
    throw AgreedError("sequence length {}: must be at least 1; use 1 or more", length);
  if (tokens < length + 1) {
    throw AgreedError(
        "data: {} tokens cannot hold one window of {} tokens and its last target; use a sequence "
        "length of at most {} or more data",
        tokens, length, std::max<std::int64_t>(tokens - 1, 0));
  }
  windows_ = (tokens - 1) / length;
  if (shuffle) {
    // One window fewer where there are several, so that every offset below `length` fits.
    windows_ = std::max<std::int64_t>(1, (tokens - length) / length);
    slack_ = std::min(length - 1, tokens - 1 - windows_ * length);
  }
  group_windows_ = std::clamp<std::int64_t>(group_tokens / length, 1, windows_);
}

std::int64_t Sampler::begin(std::int64_t sample) const {
  TRIREME_ASSERT(sample >= 0, "sample {}", sample);
  const auto epoch = static_cast<std::uint64_t>(sample / windows_);
  const std::int64_t place = sample % windows_;
  if (!shuffle_) return place * length_;

  // Full groups are permuted; the last, smaller one takes a random place among them.
  const EpochSeeds seeds = epoch_seeds(seed_, epoch);
  const std::int64_t full = windows_ / group_windows_;
  const std::int64_t rest = windows_ % group_windows_;
  const auto rest_place = static_cast<std::int64_t>(draw_below(
      static_cast<std::uint64_t>(full) + 1, {seeds.groups, Purpose::sample_order, 1}, 0));
  const std::int64_t rest_begin = rest_place * group_windows_;
  std::int64_t group = full;
  std::int64_t size = rest;
  std::int64_t within = place - rest_begin;
  if (within < 0 || within >= rest) {
    const std::int64_t full_place = within < 0 ? place : place - rest;
    group = static_cast<std::int64_t>(permute(
        {seeds.groups, Purpose::sample_order, 0},
        static_cast<std::uint64_t>(full_place / group_windows_), static_cast<std::uint64_t>(full)));
    size = group_windows_;
    within = full_place % group_windows_;
  }
  const RandomKey inner{seeds.windows, Purpose::sample_order, static_cast<std::uint32_t>(group)};
  const auto window = group * group_windows_ +
                      static_cast<std::int64_t>(permute(inner, static_cast<std::uint64_t>(within),
                                                        static_cast<std::uint64_t>(size)));
  const auto offset = static_cast<std::int64_t>(draw_below(
      static_cast<std::uint64_t>(slack_) + 1, {seed_, Purpose::window_offset, 0}, epoch));
  return offset + window * length_;
}

}  // namespace trireme::data
