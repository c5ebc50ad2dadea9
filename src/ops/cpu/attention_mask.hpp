// Which keys a block of queries can see, from positions and documents alone.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/attention_blocks.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

/// Queries per block, and keys per unit in which visibility is decided.
inline constexpr std::int64_t query_block = 64;
inline constexpr std::int64_t key_block = 32;

/// Keys [begin, end), whose scores are columns [column, column + end − begin).
struct KeyRun {
  std::int64_t begin, end, column;
};

/// The keys that some query of a block may see, packed into columns.
struct VisibleKeys {
  std::vector<KeyRun> runs;     // all of them, ascending
  std::vector<KeyRun> partial;  // those to mask: some query of the block does not see them
  std::int64_t columns = 0;
  std::int64_t masked = 0;  // columns of `partial`
};

class Visibility {
 public:
  /// For one call of attention, during which the mask's tensors must stay.
  void prepare(const AttentionMask& mask, std::int64_t batch, std::int64_t queries,
               std::int64_t keys);
  /// Keys of [first, last) that queries [begin, end) of sequence b see; key_block divides `first`.
  void find(std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t first,
            std::int64_t last, VisibleKeys& visible) const;

  /// Query i of a sequence sees keys 0 to i, and no others.
  bool plain() const { return plain_; }
  // Of sequence b; null if the mask has none.
  const std::int32_t* query_positions(std::int64_t b) const {
    return at(query_positions_, b, queries_);
  }
  const std::int32_t* key_positions(std::int64_t b) const { return at(key_positions_, b, keys_); }
  const std::int32_t* query_documents(std::int64_t b) const {
    return at(query_documents_, b, queries_);
  }
  const std::int32_t* key_documents(std::int64_t b) const { return at(key_documents_, b, keys_); }

 private:
  static const std::int32_t* at(const std::int32_t* base, std::int64_t b, std::int64_t tokens) {
    return base == nullptr ? nullptr : base + b * tokens;
  }
  const std::int32_t* query_positions_ = nullptr;
  const std::int32_t* key_positions_ = nullptr;
  const std::int32_t* query_documents_ = nullptr;
  const std::int32_t* key_documents_ = nullptr;
  bool causal_ = true, plain_ = false;
  std::int64_t queries_ = 0, keys_ = 0, blocks_ = 0;
  std::vector<Extent> extents_;  // [batch, key blocks]
};

}  // namespace trireme::ops
