#include <algorithm>
#include <array>
#include <vector>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

#include "hugging_face.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace trireme::data {
namespace {

/// White_Space of Unicode 4.1 and later, Oniguruma's \s; PCRE2's has U+180E too.
constexpr std::string_view spaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::array<std::string_view, 37> categories = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool punctuation(char c) { return c > ' ' && c < 0x7F && !letter(c) && !digit(c); }

/// A pattern in PCRE2's syntax. Throws Error that begins with `where` and names what is not taken.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) item();
    if (!folds_.empty()) refuse("an open group", pattern_.size());
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::size_t at) const {
    throw Error("{}: the pattern has {} at byte {}: {}; use a tokenizer without it", where_, what,
                at, config::one_line(std::string(pattern_.substr(0, 200))));
  }
  [[noreturn]] void refuse_here(std::size_t bytes) const {
    const std::string part = config::one_line(std::string(pattern_.substr(at_, bytes)));
    refuse(fmt::format("'{}', which is not supported here", part), at_);
  }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  bool folding() const { return !folds_.empty() && folds_.back(); }

  void item() {
    const char c = peek();
    if (c == '(') return group();
    if (c == ')') {
      if (folds_.empty()) refuse_here(1);
      folds_.pop_back();
      return copy(1);
    }
    if (folding() && c != '|') return folded();
    if (c == '[') return set();
    if (c == '\\') return escape(false);
    if (c == '*' || c == '+' || c == '?') {
      copy(1);
      if (peek() == '+' || peek() == '?') copy(1);  // possessive, lazy
      return;
    }
    if (c == '{') return count();
    if (c == '.' || c == '^' || c == '$' || c == '}' || c == ']' || c == '\0') refuse_here(1);
    copy(1);
  }

  void group() {
    const bool outer = folding();
    if (take("(?i:")) {
      out_ += "(?i:";
      folds_.push_back(true);
      return;
    }
    for (const std::string_view begin : {"(?:", "(?>", "(?=", "(?!"}) {
      if (!take(begin)) continue;
      out_ += begin;
      folds_.push_back(outer);
      return;
    }
    if (peek(1) == '?' || peek(1) == '*') refuse_here(4);
    ++at_;
    out_ += "(?:";
    folds_.push_back(outer);
  }

  /// Without regard to case the two agree on ASCII literals, but for pairs that are one character
  /// somewhere in Unicode (ß, ﬀ, ﬁ, ﬂ, ﬆ), which Oniguruma takes for the pair.
  void folded() {
    const char c = peek();
    const auto lower = [this](std::size_t i) { return static_cast<char>(peek(i) | 0x20); };
    const std::string pair = {lower(0), lower(1)};
    for (const char* ligature : {"ss", "ff", "fi", "fl", "st"}) {
      if (letter(c) && letter(peek(1)) && pair == ligature) refuse_here(2);
    }
    const bool plain = letter(c) || digit(c) || c == '\'' || c == ' ' || c == '-';
    if (!plain || peek(1) == '{') refuse_here(1);
    copy(1);
  }

  void count() {
    std::size_t end = at_ + 1;
    const auto number = [&] {
      const std::size_t begin = end;
      while (end < pattern_.size() && digit(pattern_[end])) ++end;
      return end > begin && end - begin <= 4;
    };
    bool right = number();
    if (right && end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      if (end < pattern_.size() && pattern_[end] != '}') right = number();
    }
    right = right && end < pattern_.size() && pattern_[end] == '}';
    if (!right) refuse_here(4);
    copy(end + 1 - at_);
    if (peek() == '+') refuse_here(1);  // possessive here, a repeat of the repeat there
    if (peek() == '?') copy(1);
  }

  void escape(bool inside) {
    const char c = peek(1);
    if (c == 'r' || c == 'n' || c == 't') return copy(2);
    if (c == 's' || (c == 'S' && !inside)) {
      at_ += 2;
      out_ += inside ? std::string(spaces) : fmt::format("[{}{}]", c == 'S' ? "^" : "", spaces);
      return;
    }
    if (c == 'd') {
      at_ += 2;
      out_ += R"(\p{Nd})";
      return;
    }
    if (c == 'p' || c == 'P') {
      const std::size_t end = pattern_.find('}', at_);
      if (peek(2) != '{' || end == std::string_view::npos) refuse_here(3);
      const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
      if (std::find(categories.begin(), categories.end(), name) == categories.end())
        refuse_here(end + 1 - at_);
      return copy(end + 1 - at_);
    }
    if (punctuation(c)) return copy(2);
    refuse_here(2);
  }

  void set() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse_here(1);
    while (peek() != ']') {
      if (at_ >= pattern_.size()) refuse("an open class", at_);
      if (peek() == '[' || pattern_.substr(at_).starts_with("&&")) refuse_here(2);
      if (peek() == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void copy(std::size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> folds_;  // by open group: regardless of case
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto free>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};

}  // namespace

struct SplitPattern::Compiled {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> match;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack;
  bool jit = false;
};

SplitPattern::SplitPattern(std::string_view pattern, std::string where)
    : compiled_(std::make_unique<Compiled>()), where_(std::move(where)) {
  constexpr std::size_t longest = 4096;
  if (pattern.size() > longest) {
    throw Error("{}: the pattern has {} bytes; {} are the most", where_, pattern.size(), longest);
  }
  const std::string text = Translator(pattern, where_).run();
  int error = 0;
  PCRE2_SIZE at = 0;
  Compiled& c = *compiled_;
  c.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                             nullptr));
  if (!c.code) {
    throw Error("{}: the pattern is not a regular expression: {} (byte {} of {}); restore the file",
                where_, message_of(error), at, config::one_line(text));
  }
  std::uint32_t empty = 0;
  pcre2_pattern_info(c.code.get(), PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty != 0) {
    throw Error("{}: the pattern can match nothing at all: {}; use another tokenizer", where_,
                config::one_line(text));
  }
  c.jit = pcre2_jit_compile(c.code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  c.match.reset(pcre2_match_data_create(1, nullptr));
  c.context.reset(pcre2_match_context_create(nullptr));
  constexpr std::size_t kib = 1024;
  c.stack.reset(pcre2_jit_stack_create(64 * kib, 16 * kib * kib, nullptr));
  if (!c.match || !c.context || (c.jit && !c.stack)) throw std::bad_alloc();
  if (c.jit) pcre2_jit_stack_assign(c.context.get(), nullptr, c.stack.get());
}

SplitPattern::~SplitPattern() = default;

SplitPattern::Found SplitPattern::find(std::string_view text, bool ends) {
  Compiled& c = *compiled_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::uint32_t options = ends ? 0 : PCRE2_PARTIAL_HARD;
  // Text is checked before it comes here; the shorter call leaves out checks of its arguments.
  const int code = c.jit
                       ? pcre2_jit_match(c.code.get(), subject, text.size(), 0, options,
                                         c.match.get(), c.context.get())
                       : pcre2_match(c.code.get(), subject, text.size(), 0,
                                     options | PCRE2_NO_UTF_CHECK, c.match.get(), c.context.get());
  if (code == PCRE2_ERROR_PARTIAL) return {Result::depends};
  if (code == PCRE2_ERROR_NOMATCH) return {ends ? Result::none : Result::depends};
  if (code < 0) {
    throw Error("{}: the pattern fails on this text: {}; use another tokenizer", where_,
                message_of(code));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(c.match.get());
  return {Result::match, range[0], range[1]};
}

}  // namespace trireme::data
