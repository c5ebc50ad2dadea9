// A tokenizer.json behind the Tokenizer interface. Text goes through four steps, each of which must
// know whether more text may follow: stretches of valid UTF-8, added tokens (two rounds), the
// pattern's pre-tokens, byte pairs. Bytes that are not UTF-8 become the tokens of single bytes.
#include "hugging_face.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <xxhash.h>

#include "tokenizers.hpp"

namespace trireme::data {
namespace {

// A pre-token longer than this is cut, so that a stream needs no more of its text at once.
constexpr std::size_t longest_window = std::size_t{64} << 10;

/// The length of the valid UTF-8 at the front of `text`.
std::size_t valid_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_length(text.substr(at, 4));
    if (length == 0) break;
    at += length;
  }
  return at;
}

/// Whether some bytes behind `text` could make it a character.
bool begins_character(std::string_view text) {
  for (const std::string_view rest :
       {"\x80", "\x80\x80", "\x80\x80\x80", "\xA0\x80", "\x90\x80\x80"}) {
    const std::string whole = std::string(text) + std::string(rest);
    if (utf8_length(whole) == whole.size()) return true;
  }
  return false;
}

/// The beginning of the character that holds byte `at`.
std::size_t character_boundary(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<std::uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

/// Added tokens: whole texts that become one token before the pattern sees the text.
class AddedTokens {
 public:
  /// Those of `added` that are `normalized` or are not.
  AddedTokens(const std::vector<AddedToken>& added, bool normalized) {
    for (const AddedToken& token : added) {
      if (token.normalized != normalized) continue;
      tokens_.push_back(token);
      begins_[static_cast<std::uint8_t>(token.content[0])] = true;
      longest_ = std::max(longest_, token.content.size());
    }
    std::sort(tokens_.begin(), tokens_.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  }
  struct Found {
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
  };
  /// The leftmost that begins in [from, limit), and of several there the longest.
  std::optional<Found> find(std::string_view text, std::size_t from, std::size_t limit) const {
    if (tokens_.empty()) return std::nullopt;
    for (std::size_t i = from; i < limit; ++i) {
      if (!begins_[static_cast<std::uint8_t>(text[i])]) continue;
      if (const auto found = at(text, i)) return found;
    }
    return std::nullopt;
  }
  std::size_t longest() const { return longest_; }  // bytes

 private:
  /// The longest that begins at `begin`: one more byte at a time, among those that still fit.
  std::optional<Found> at(std::string_view text, std::size_t begin) const {
    std::optional<Found> found;
    auto first = tokens_.begin(), last = tokens_.end();
    for (std::size_t depth = 0; first != last && begin + depth < text.size(); ++depth) {
      const auto next = static_cast<std::uint8_t>(text[begin + depth]);
      // Of contents that agree so far, a shorter one sorts before the longer ones.
      const auto byte = [depth](const AddedToken& token) {
        return depth < token.content.size() ? static_cast<std::uint8_t>(token.content[depth]) : -1;
      };
      first = std::partition_point(first, last,
                                   [&](const AddedToken& token) { return byte(token) < next; });
      last = std::partition_point(first, last,
                                  [&](const AddedToken& token) { return byte(token) <= next; });
      if (first != last && first->content.size() == depth + 1) {
        found = {begin, begin + depth + 1, first->id};
      }
    }
    return found;
  }

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};  // by first byte
  std::size_t longest_ = 0;
};

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

/// Byte-pair encoding of one pre-token (Sennrich et al. 2016, as in GPT-2): of the pairs of
/// neighbors that have a merge, the one of lowest rank, and of several the leftmost, becomes one
/// token, until none is left.
class BytePairs {
 public:
  /// `byte_ids` are the tokens of single bytes; merges are in order of rank, and of equal pairs the
  /// last counts.
  BytePairs(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges)
      : byte_ids_(byte_ids), rules_(std::bit_ceil(2 * merges.size() + 2)) {
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const Merge& merge = merges[rank];
      const std::uint64_t pair = pair_of(merge.left, merge.right);
      rules_[slot_of(pair)] = {pair, static_cast<std::int32_t>(rank), merge.made};
    }
  }
  /// Appends the tokens of `piece`, in O(n log n). Not thread-safe: it keeps its work space.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) {
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

  /// Where `pair` is, or would be put.
  std::size_t slot_of(std::uint64_t pair) const {
    const std::size_t mask = rules_.size() - 1;
    std::size_t slot = (pair * 0x9E3779B97F4A7C15U) >> 20 & mask;
    while (rules_[slot].pair != empty && rules_[slot].pair != pair) slot = (slot + 1) & mask;
    return slot;
  }

  const Rule* find(std::int32_t left, std::int32_t right) const {
    const Rule& rule = rules_[slot_of(pair_of(left, right))];
    return rule.pair == empty ? nullptr : &rule;
  }

  /// The pair of symbol `at` and the next, if it has a merge.
  void propose(std::int32_t at) {
    const Symbol& symbol = symbols_[static_cast<std::size_t>(at)];
    if (symbol.after < 0) return;
    const Rule* rule = find(symbol.id, symbols_[static_cast<std::size_t>(symbol.after)].id);
    if (rule == nullptr) return;
    heap_.push_back({rule->rank, at, rule->made});
    std::push_heap(heap_.begin(), heap_.end());
  }

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Rule> rules_;  // open addressing; a power of two, at most half full
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

class HuggingFace : public Tokenizer {
 public:
  HuggingFace(TokenizerJson json, const std::string& where)
      : tokens_(std::move(json.tokens)),
        byte_ids_(json.byte_ids),
        rounds_{AddedTokens(json.added, false), AddedTokens(json.added, true)},
        pattern_(json.pattern, where + ": pre_tokenizer"),
        pairs_(json.byte_ids, json.merges),
        cache_(cache_slots) {
    if (!json.ignore_merges) return;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (json.in_model[id]) whole_.emplace(tokens_[id], static_cast<std::int32_t>(id));
    }
  }

  std::string kind() const override { return "huggingface"; }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(tokens_.size()); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 3);
    const std::lock_guard guard(mutex_);
    encode_bytes(text, true, ids);
    return ids;
  }

  std::size_t encode_stable(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::lock_guard guard(mutex_);
    return encode_bytes(text, false, ids);
  }

 private:
  std::string bytes_of(std::int32_t id) const override {
    return tokens_[static_cast<std::size_t>(id)];
  }

  // Each of these takes a text and whether it ends there, and returns how much of it is certain and
  // encoded: all of it if it ends.

  std::size_t encode_bytes(std::string_view text, bool ends, std::vector<std::int32_t>& ids) const {
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t valid = valid_length(text.substr(at));
      const std::string_view rest = text.substr(at + valid);
      const bool open = !ends && (rest.empty() || (rest.size() < 4 && begins_character(rest)));
      const std::size_t done = encode_round(0, text.substr(at, valid), !open, ids);
      at += done;
      if (open) break;
      if (at < text.size()) ids.push_back(byte_ids_[static_cast<std::uint8_t>(text[at++])]);
    }
    return at;
  }

  /// Added tokens of round 0 and 1; what is between them continues to the next step.
  std::size_t encode_round(std::size_t round, std::string_view text, bool ends,
                           std::vector<std::int32_t>& ids) const {
    if (round == rounds_.size()) return encode_pieces(text, ends, ids);
    const AddedTokens& added = rounds_[round];
    // Where none can begin whose end is not there yet.
    std::size_t limit = text.size();
    if (!ends && added.longest() > 0) {
      limit = character_boundary(text, limit - std::min(limit, added.longest() - 1));
    }
    std::size_t at = 0;
    for (;;) {
      const auto found = added.find(text, at, limit);
      const std::size_t stop = found ? found->begin : std::max(at, limit);
      const std::string_view gap = text.substr(at, stop - at);
      const std::size_t done = encode_round(round + 1, gap, found || ends, ids);
      if (!found) return at + done;
      ids.push_back(found->id);
      at = found->end;
    }
  }

  std::size_t encode_pieces(std::string_view text, bool ends,
                            std::vector<std::int32_t>& ids) const {
    std::size_t at = 0;
    while (at < text.size()) {
      const std::string_view rest = text.substr(at);
      const std::string_view window =
          rest.substr(0, character_boundary(rest, std::min(rest.size(), longest_window)));
      const bool all = window.size() == rest.size();
      SplitPattern::Found found = pattern_.find(window, all && ends);
      if (found.result == SplitPattern::Result::depends) {
        if (all) return at;
        found = pattern_.find(window, true);
      }
      if (found.result != SplitPattern::Result::match) found = {found.result, window.size(), 0};
      if (found.begin > 0) encode_piece(window.substr(0, found.begin), ids);
      if (found.end > 0) encode_piece(window.substr(found.begin, found.end - found.begin), ids);
      at += std::max(found.begin, found.end);
    }
    return at;
  }

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const {
    if (piece.size() > Slot::most_bytes) return encode_new(piece, ids);
    Slot& slot = cache_[XXH3_64bits(piece.data(), piece.size()) % cache_slots];
    if (slot.bytes != piece.size() || std::memcmp(slot.text, piece.data(), piece.size()) != 0) {
      fresh_.clear();
      encode_new(piece, fresh_);
      if (fresh_.size() > Slot::most_ids) {
        ids.insert(ids.end(), fresh_.begin(), fresh_.end());
        return;
      }
      slot.bytes = static_cast<std::uint8_t>(piece.size());
      slot.count = static_cast<std::uint8_t>(fresh_.size());
      std::memcpy(slot.text, piece.data(), piece.size());
      std::copy(fresh_.begin(), fresh_.end(), slot.ids);
    }
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
  }

  void encode_new(std::string_view piece, std::vector<std::int32_t>& ids) const {
    const auto known = whole_.find(piece);
    if (known == whole_.end()) return pairs_.encode(piece, ids);
    ids.push_back(known->second);
  }

  /// Most pre-tokens have been seen before. One cache line each; a new one takes the place of
  /// another.
  struct alignas(64) Slot {
    static constexpr std::size_t most_bytes = 30, most_ids = 8;
    std::uint8_t bytes = 0, count = 0;
    char text[most_bytes] = {};
    std::int32_t ids[most_ids] = {};
  };
  static constexpr std::size_t cache_slots = std::size_t{1} << 17;

  std::vector<std::string> tokens_;
  std::array<std::int32_t, 256> byte_ids_;
  std::array<AddedTokens, 2> rounds_;
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> whole_;
  mutable std::mutex mutex_;  // of what follows
  mutable SplitPattern pattern_;
  mutable BytePairs pairs_;
  mutable std::vector<Slot> cache_;
  mutable std::vector<std::int32_t> fresh_;
};

}  // namespace

LoadedModel hugging_face_tokenizer(const std::string& json, const std::string& where) {
  TokenizerJson read = parse_tokenizer_json(json, where);
  LoadedModel loaded;
  for (const AddedToken& token : read.added) loaded.added.emplace(token.content, token.id);
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    const auto found = loaded.added.find(name);
    if (found == loaded.added.end()) continue;
    loaded.end_of_document = found->second;
    break;
  }
  loaded.tokenizer = std::make_unique<HuggingFace>(std::move(read), where);
  return loaded;
}

}  // namespace trireme::data
