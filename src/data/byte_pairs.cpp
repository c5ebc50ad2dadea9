#include <algorithm>
#include <bit>

#include "trireme/core/error.hpp"

#include "hugging_face.hpp"

namespace trireme::data {
namespace {

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

BytePairs::BytePairs(const std::array<std::int32_t, 256>& byte_ids,
                     const std::vector<Merge>& merges)
    : byte_ids_(byte_ids), rules_(std::bit_ceil(2 * merges.size() + 2)) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    rules_[slot_of(pair)] = {pair, static_cast<std::int32_t>(rank), merge.made};
  }
}

/// Where `pair` is, or would be put.
std::size_t BytePairs::slot_of(std::uint64_t pair) const {
  const std::size_t mask = rules_.size() - 1;
  std::size_t slot = (pair * 0x9E3779B97F4A7C15U) >> 20 & mask;
  while (rules_[slot].pair != empty && rules_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

const BytePairs::Rule* BytePairs::find(std::int32_t left, std::int32_t right) const {
  const Rule& rule = rules_[slot_of(pair_of(left, right))];
  return rule.pair == empty ? nullptr : &rule;
}

/// The pair of symbol `at` and the next, if it has a merge.
void BytePairs::propose(std::int32_t at) {
  const Symbol& symbol = symbols_[static_cast<std::size_t>(at)];
  if (symbol.after < 0) return;
  const Rule* rule = find(symbol.id, symbols_[static_cast<std::size_t>(symbol.after)].id);
  if (rule == nullptr) return;
  heap_.push_back({rule->rank, at, rule->made});
  std::push_heap(heap_.begin(), heap_.end());
}

void BytePairs::encode(std::string_view piece, std::vector<std::int32_t>& ids) {
  const auto size = static_cast<std::int32_t>(piece.size());
  symbols_.resize(piece.size());
  heap_.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<std::uint8_t>(piece[static_cast<std::size_t>(i)]);
    symbols_[static_cast<std::size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < size ? i + 1 : -1};
  }
  for (std::int32_t i = 0; i + 1 < size; ++i) propose(i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(best.at)];
    if (!left.alive || left.after < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.after)];
    // The pair may have become another one since it was proposed.
    const Rule* rule = find(left.id, right.id);
    if (rule == nullptr || rule->rank != best.rank) continue;
    left.id = best.made;
    left.after = right.after;
    right.alive = false;
    if (left.after >= 0) symbols_[static_cast<std::size_t>(left.after)].before = best.at;
    if (left.before >= 0) propose(left.before);
    propose(best.at);
  }
  for (std::int32_t i = size > 0 ? 0 : -1; i >= 0;
       i = symbols_[static_cast<std::size_t>(i)].after) {
    ids.push_back(symbols_[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace trireme::data
