// Which source of a blend a sample comes from, and which of the source's samples it is: a pure
// function of the sample's number, so that every layout and every restart sees the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trireme::data {

/// Weights of sources as multiples of 1 / all.
struct Shares {
  std::int64_t all = 0;             // Σ parts, at most most_parts
  std::vector<std::int64_t> parts;  // by source; 0: nothing of it
  bool operator==(const Shares&) const = default;
};
inline constexpr std::int64_t most_parts = std::int64_t{1} << 20;

/// The shares that `weights` are in proportion to: exact where all is at most most_parts with
/// weights of up to nine decimals, else nearest to them, with at least one part for a weight above
/// 0. Weights are finite, at least 0, and not all 0.
Shares shares_of(std::span<const double> weights);

/// A part of a blend with one set of weights.
struct BlendPhase {
  std::int64_t first = 0;  // sample
  Shares shares;
};

/// Of any n samples from the beginning of a phase, each source gives fewer than one more or less
/// than n · part / all. The samples of a source are taken in the order of their numbers, 0, 1, 2
/// and so on, without a gap.
class Blend {
 public:
  struct Place {
    std::size_t source = 0;
    std::int64_t sample = 0;  // its number in the source
    bool operator==(const Place&) const = default;
  };
  /// `phases` ascend; `given`: samples that each source has given before the first one.
  Blend(const std::vector<BlendPhase>& phases, std::vector<std::int64_t> given);

  /// Where sample `sample` is, not before the first phase.
  Place at(std::int64_t sample) const;
  /// Samples of each source before sample `sample`.
  std::vector<std::int64_t> given(std::int64_t sample) const;
  /// The phase that sample `sample` is in, and what each source has given before that phase.
  struct Begun {
    BlendPhase phase;
    std::vector<std::int64_t> given;
  };
  const Begun& begun(std::int64_t sample) const;

 private:
  /// A phase repeats this order of sources: slot n is a sample of `source`, the `before`-th of its.
  struct Slot {
    std::uint32_t source, before;
  };
  static std::vector<Slot> order_of(const Shares& shares);
  struct Phase {
    Begun begun;
    std::shared_ptr<const std::vector<Slot>> order;
  };
  const Phase& phase_of(std::int64_t sample) const;

  std::vector<Phase> phases_;
};

}  // namespace trireme::data
