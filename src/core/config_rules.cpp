// Rules on values, how values print, and the nearest of the valid words to a mistyped one.
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "trireme/core/config.hpp"

namespace trireme::config {

namespace {

double number_of(const Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::numeric_limits<double>::quiet_NaN();  // fails every comparison
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

Rule number_rule(std::function<bool(double)> kept, std::string text, std::string remedy) {
  return {[kept = std::move(kept)](const Value& value) { return kept(number_of(value)); },
          std::move(text), std::move(remedy)};
}

}  // namespace

std::string to_string(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  std::array<char, 32> buffer{};
  char* end = buffer.data() + buffer.size();
  const auto* integer = std::get_if<std::int64_t>(&value);
  const auto result = integer != nullptr
                          ? std::to_chars(buffer.data(), end, *integer)
                          : std::to_chars(buffer.data(), end, std::get<double>(value));
  return {buffer.data(), result.ptr};
}

nlohmann::json to_json(const Value& value) {
  return std::visit([](const auto& held) { return nlohmann::json(held); }, value);
}

Rule at_least(std::int64_t bound) {
  // Compared as an integer where it is one: near 2^63 doubles would blur the bound.
  return {[bound](const Value& value) {
            const auto* integer = std::get_if<std::int64_t>(&value);
            return integer != nullptr ? *integer >= bound
                                      : number_of(value) >= static_cast<double>(bound);
          },
          fmt::format("must be at least {}", bound), fmt::format("use {} or more", bound)};
}

Rule positive() {
  return number_rule([](double x) { return x > 0; }, "must be above 0", "use a value above 0");
}

Rule non_negative() {
  return number_rule([](double x) { return x >= 0; }, "must be at least 0", "use 0 or more");
}

Rule in_range(double low, double high) {
  Rule rule =
      number_rule([low, high](double x) { return x >= low && x <= high; },
                  fmt::format("must be from {} to {}", to_string(low), to_string(high)), "");
  rule.suggest = [low, high](const Value& value) {
    return "nearest: " + to_string(number_of(value) < low ? low : high);
  };
  return rule;
}

Rule below(double low, double high) {
  Rule rule = number_rule(
      [low, high](double x) { return x >= low && x < high; },
      fmt::format("must be at least {} and below {}", to_string(low), to_string(high)), "");
  rule.suggest = [low, high](const Value& value) {
    return number_of(value) < low ? "use " + to_string(low) + " or more"
                                  : "use a value below " + to_string(high);
  };
  return rule;
}

Rule one_of(std::vector<std::string> words) {
  std::string list;
  for (const std::string& word : words) {
    list += (list.empty() ? "" : ", ") + (word.empty() ? "\"\"" : word);
  }
  Rule rule;
  rule.choices = words;
  rule.text = words.size() == 1 ? "must be " + list : "must be one of " + list;
  rule.kept = [words](const Value& value) {
    return std::find(words.begin(), words.end(), to_string(value)) != words.end();
  };
  rule.suggest = [words = std::move(words)](const Value& value) {
    const auto near = nearest(to_string(value), words);
    return near ? "did you mean " + *near + "?" : "choose one of these";
  };
  return rule;
}

Rule any() {
  return {[](const Value&) { return true; }, "may be anything", ""};
}

std::size_t edit_distance(const std::string& first, const std::string& second) {
  const std::string a = lower(first), b = lower(second);
  // rows[2] is the row being filled, rows[1] the one above, rows[0] the one above that.
  std::array<std::vector<std::size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) rows[2][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    rows[2][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = rows[1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[2][j] = std::min({rows[1][j] + 1, rows[2][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
      }
    }
  }
  return rows[2][b.size()];
}

bool close_enough(std::size_t distance, const std::string& word) {
  return distance < word.size() && distance <= std::max<std::size_t>(2, word.size() / 3);
}

std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& words) {
  std::optional<std::string> best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : words) {
    if (candidate.empty()) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least && close_enough(distance, word)) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string shortened(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) --bytes;
  return text.substr(0, bytes) + "…";
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t known = std::string_view("\n\r\t").find(c);
    if (known != std::string_view::npos) {
      line += {'\\', "nrt"[known]};
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\u{:04x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace trireme::config
