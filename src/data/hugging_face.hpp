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

}  // namespace trireme::data
