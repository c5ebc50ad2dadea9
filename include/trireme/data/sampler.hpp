// Which window of the token sequence sample number n is: a pure function of (seed, n), so that
// global batch b holds the same samples in every layout and after every restart.
#pragma once

#include <cstdint>

namespace trireme::data {

/// Independent seeds of one epoch: for the order of groups, and of what is inside them.
struct EpochSeeds {
  std::uint64_t groups, windows;
};
EpochSeeds epoch_seeds(std::uint64_t seed, std::uint64_t epoch);

/// A sample is `length` inputs and their `length` targets: tokens [begin, begin + length + 1).
/// In each epoch windows are adjacent from a random offset below `length` (0 without shuffling)
/// and every window is visited once: one keyed bijection orders groups of neighboring windows, a
/// second the windows inside a group, so that a reader works from few resident groups.
class Sampler {
 public:
  /// Throws AgreedError when `tokens` cannot hold one window, naming both numbers.
  Sampler(std::int64_t tokens, std::int64_t length, std::int64_t group_tokens, std::uint64_t seed,
          bool shuffle);
  std::int64_t length() const { return length_; }
  std::int64_t windows_per_epoch() const { return windows_; }
  std::int64_t begin(std::int64_t sample) const;  // first token of sample number `sample` ≥ 0

 private:
  std::int64_t length_, group_windows_, windows_, slack_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace trireme::data
