// The regular expression that cuts text into pre-tokens. tokenizer.json means Oniguruma's (Ruby)
// syntax; here PCRE2 matches it, so only what means the same in both is taken, and \s, which
// differs in U+180E, is spelled out.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {

/// The pattern in PCRE2's syntax. Takes literals, \r \n \t, \s \S \d, \p{} and \P{} of general
/// categories, classes of these, groups ((…), (?:…), (?>…), (?=…), (?!…), and (?i:…) of ASCII
/// literals), alternatives and repetition. Throws Error that begins with `where` and names anything
/// else.
std::string pcre2_syntax(std::string_view pattern, const std::string& where);

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
