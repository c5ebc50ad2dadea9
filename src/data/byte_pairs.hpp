// Byte-pair encoding of one pre-token (Sennrich et al. 2016, as in GPT-2): of the pairs of
// neighbors that have a merge, the one of lowest rank, and of several the leftmost, becomes one
// token, until none is left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::data {

struct Merge {
  std::int32_t left = 0, right = 0, made = 0;  // token ids
};

class BytePairs {
 public:
  /// `byte_ids` are the tokens of single bytes; merges are in order of rank, and of equal pairs the
  /// last counts.
  BytePairs(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges);
  /// Appends the tokens of `piece`, in O(n log n). Not thread-safe: it keeps its work space.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids);

 private:
  struct Rule {
    std::uint64_t pair = empty;
    std::int32_t rank = 0, made = 0;
  };
  struct Symbol {
    std::int32_t id = 0, before = -1, after = -1;  // neighbors by index
    bool alive = true;
  };
  struct Candidate {
    std::int32_t rank, at, made;
    bool operator<(const Candidate& other) const {  // std's heaps hold the largest first
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  static constexpr std::uint64_t empty = ~std::uint64_t{0};

  std::size_t slot_of(std::uint64_t pair) const;
  const Rule* find(std::int32_t left, std::int32_t right) const;
  void propose(std::int32_t at);

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Rule> rules_;  // open addressing; a power of two, at most half full
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace trireme::data
