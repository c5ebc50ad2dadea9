// Byte-level BPE as Hugging Face's tokenizers keep it in a tokenizer.json: the file, its pattern
// and its merges. hugging_face.cpp puts them together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

struct Merge {
  std::int32_t left = 0, right = 0, made = 0;  // token ids
};

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool normalized = false;  // looked for behind those that are not
  bool special = false;
};

struct TokenizerJson {
  std::vector<std::string> tokens;  // by id: its bytes
  std::vector<bool> in_model;       // by id: can come out of the model, not only as an added token
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::string pattern;         // of the pre-tokenizer, in Oniguruma's syntax
  bool ignore_merges = false;  // a pre-token that is a token is that token
};

/// Longest content of an added token, in bytes.
inline constexpr std::size_t longest_added_token = 1024;

/// Throws Error that begins with `where` and names the first part that would not be computed alike:
/// nothing is passed over. The post-processor, which only puts special tokens round a text, is not
/// applied to training text; its kind is checked all the same.
TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& where);

/// The regular expression that cuts text into pre-tokens. tokenizer.json means Oniguruma's (Ruby)
/// syntax; here PCRE2 matches it, so only what means the same in both is taken, and \s, which
/// differs in U+180E, is spelled out: literals, \r \n \t, \s \S \d, \p{} and \P{} of general
/// categories, classes of these, groups ((…), (?:…), (?>…), (?=…), (?!…), and (?i:…) of ASCII
/// literals), alternatives and repetition.
class SplitPattern {
 public:
  /// Throws Error that begins with `where` for a pattern that is not taken or can match nothing.
  SplitPattern(std::string_view pattern, std::string where);
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;
  ~SplitPattern();

  enum class Result : std::uint8_t { match, none, depends };
  struct Found {
    Result result = Result::none;
    std::size_t begin = 0, end = 0;
  };
  /// The first match in `text`, valid UTF-8. When more text may follow (`ends` is false) the answer
  /// is `depends` if that could make it another one. Throws Error when the matcher gives up. Not
  /// thread-safe.
  Found find(std::string_view text, bool ends);

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string where_;
};

/// Byte-pair encoding of one pre-token (Sennrich et al. 2016, as in GPT-2): of the pairs of
/// neighbors that have a merge, the one of lowest rank, and of several the leftmost, becomes one
/// token, until none is left.
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
