#include "attention_mask.hpp"

#include <algorithm>

#include "rows.hpp"

namespace trireme::ops {
namespace {

Extent extent_of(const std::int32_t* positions, const std::int32_t* documents, std::int64_t begin,
                 std::int64_t end) {
  Extent extent{0, 0, 0, 0};
  if (positions != nullptr) {
    const auto [low, high] = std::minmax_element(positions + begin, positions + end);
    extent.first_position = *low;
    extent.last_position = *high;
  }
  if (documents != nullptr) {
    const auto [low, high] = std::minmax_element(documents + begin, documents + end);
    extent.first_document = *low;
    extent.last_document = *high;
  }
  return extent;
}

void append(std::vector<KeyRun>& runs, const KeyRun& run) {
  if (!runs.empty() && runs.back().end == run.begin) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

}  // namespace

void Visibility::prepare(const AttentionMask& mask, std::int64_t batch, std::int64_t queries,
                         std::int64_t keys) {
  causal_ = mask.causal;
  plain_ = mask.plain;
  queries_ = queries;
  keys_ = keys;
  query_positions_ = causal_ ? flat<std::int32_t>(mask.query_positions, batch * queries) : nullptr;
  key_positions_ = causal_ ? flat<std::int32_t>(mask.key_positions, batch * keys) : nullptr;
  TRIREME_ASSERT(static_cast<bool>(mask.query_documents) == static_cast<bool>(mask.key_documents),
                 "documents of queries and of keys come together");
  query_documents_ = flat_or_null<std::int32_t>(mask.query_documents, batch * queries);
  key_documents_ = flat_or_null<std::int32_t>(mask.key_documents, batch * keys);
  blocks_ = (keys + key_block - 1) / key_block;
  extents_.clear();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t begin = 0; begin < keys; begin += key_block) {
      extents_.push_back(
          extent_of(key_positions(b), key_documents(b), begin, std::min(begin + key_block, keys)));
    }
  }
}

void Visibility::find(std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t first,
                      std::int64_t last, VisibleKeys& visible) const {
  visible.runs.clear();
  visible.partial.clear();
  visible.columns = 0;
  visible.masked = 0;
  const Extent q = extent_of(query_positions(b), query_documents(b), begin, end);
  for (std::int64_t block = first / key_block; block * key_block < last; ++block) {
    const Extent& k = extents_[static_cast<std::size_t>(b * blocks_ + block)];
    const Seen keys = seen(q, k, causal_);
    if (keys == Seen::none) continue;
    const KeyRun run{block * key_block, std::min((block + 1) * key_block, last), visible.columns};
    append(visible.runs, run);
    if (keys != Seen::all) {
      append(visible.partial, run);
      visible.masked += run.end - run.begin;
    }
    visible.columns += run.end - run.begin;
  }
}

}  // namespace trireme::ops
