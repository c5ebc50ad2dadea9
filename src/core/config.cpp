// Fields and how they read a value. The files that fields come from and go to are in
// config_files.cpp, rules in config_rules.cpp.
#include "trireme/core/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <type_traits>

#include <strings.h>

namespace trireme::config {

namespace {

// Beyond 2^53 neighboring integers are the same double.
constexpr double exact_limit = 9007199254740992.0;
constexpr std::size_t longest_key = 80;  // that is compared with ours to find what was meant

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Without underscores between two digits and without a leading plus.
std::string plain_digits(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool separates = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                           is_digit(text[i - 1]) && is_digit(text[i + 1]);
    const bool plus = i == 0 && text[i] == '+' && text.size() > 1 && text[1] != '-';
    if (!separates && !plus) plain += text[i];
  }
  return plain;
}

template <class T>
std::optional<T> parse_whole(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<double> parse_number(const std::string& text) {
  const auto value = parse_whole<double>(plain_digits(text));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> to_integer(double value) {
  if (!(std::abs(value) <= exact_limit) || std::trunc(value) != value) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  if (const auto value = parse_whole<std::int64_t>(plain_digits(text))) return value;
  const auto value = parse_number(text);
  return value ? to_integer(*value) : std::nullopt;
}

std::optional<bool> parse_flag(const std::string& text) {
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (::strcasecmp(text.c_str(), yes) == 0) return true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (::strcasecmp(text.c_str(), no) == 0) return false;
  }
  return std::nullopt;
}

/// JSON and TOML carry nothing else, so any other bytes would fail much later.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

/// The value as the type of `target`, or nothing when it is of another kind.
std::optional<Value> converted(const Field& field, const Value& value) {
  return std::visit(
      [&](auto* target) -> std::optional<Value> {
        using T = std::remove_pointer_t<decltype(target)>;
        if (const auto* same = std::get_if<T>(&value)) {
          if constexpr (std::is_same_v<T, double>) {
            if (!std::isfinite(*same)) return std::nullopt;
          }
          if constexpr (std::is_same_v<T, std::string>) {
            if (!is_utf8(*same)) return std::nullopt;
          }
          return value;
        }
        if constexpr (std::is_same_v<T, double>) {
          if (const auto* integer = std::get_if<std::int64_t>(&value)) {
            return static_cast<double>(*integer);
          }
        }
        if constexpr (std::is_same_v<T, std::int64_t>) {
          if (const auto* number = std::get_if<double>(&value)) {
            if (const auto whole = to_integer(*number)) return *whole;
          }
        }
        return std::nullopt;
      },
      field.target);
}

std::optional<Value> parsed(const Field& field, const std::string& text) {
  // Made in place: GCC 12 with sanitizers takes a moved Value for uninitialized.
  const auto wrap = [](const auto& value) {
    return value ? std::make_optional<Value>(*value) : std::nullopt;
  };
  if (std::holds_alternative<bool*>(field.target)) return wrap(parse_flag(text));
  if (std::holds_alternative<std::int64_t*>(field.target)) return wrap(parse_integer(text));
  if (std::holds_alternative<double*>(field.target)) return wrap(parse_number(text));
  if (!is_utf8(text)) return std::nullopt;
  return std::make_optional<Value>(text);
}

/// "run.toml:3: model.layers", or "--model.layers" alone where that is the place.
std::string label(const Field& field, const std::string& where) {
  if (where.empty()) return field.key;
  if (where == field.key || where == "--" + field.key) return where;
  return one_line(where) + ": " + field.key;
}

[[noreturn]] void wrong_type(const Field& field, const std::string& text,
                             const std::string& where) {
  struct Words {
    const char *rule, *remedy;
  };
  constexpr std::array<Words, 4> of_type{
      {{"must be yes or no", "use true or false"},
       {"must be an integer of at most 64 bits", "write it as 12, 1e6 or 1_000_000"},
       {"must be a finite number", "write it as 0.1, 3e-4 or 12"},
       {"must be text in UTF-8", "in a file, put it in quotes"}}};
  const auto& [rule, remedy] = of_type.at(field.target.index());
  throw ConfigError(label(field, where), one_line(shortened(text, 200)), rule, remedy);
}

}  // namespace

std::string name_of(Source source) {
  constexpr std::array<const char*, 5> names{"built-in", "preset", "file", "environment",
                                             "command line"};
  return names.at(static_cast<std::size_t>(source));
}

Value Field::value() const {
  return std::visit([](const auto* held) { return Value(*held); }, target);
}

void Field::set_text(const std::string& text, Source from, const std::string& where) {
  const auto value = parsed(*this, text);
  if (!value) wrong_type(*this, text, where);
  set(*value, from, where);
}

void Field::set(const Value& given, Source from, const std::string& where) {
  const auto fitting = converted(*this, given);
  if (!fitting) wrong_type(*this, to_string(given), where);
  if (!rule.kept(*fitting)) {
    throw ConfigError(label(*this, where), one_line(shortened(to_string(given), 200)), rule.text,
                      rule.suggest ? rule.suggest(*fitting) : rule.remedy);
  }
  if (from < source) return;
  std::visit([&](auto* held) { *held = std::get<std::remove_pointer_t<decltype(held)>>(*fitting); },
             target);
  source = from;
  origin = where;
}

std::string Field::environment_name() const {
  std::string name = "TRIREME_" + key;
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (c == '.') c = '_';
  }
  return name;
}

std::string Field::type_name() const {
  static const std::array<std::string, 4> names{"yes/no", "integer", "number", "text"};
  return names[target.index()];
}

bool Field::is_flag() const { return std::holds_alternative<bool*>(target); }

void Fields::insert(Field field) {
  TRIREME_ASSERT(find(field.key) == nullptr, "field {} is declared twice", field.key);
  for (const Field& other : fields_) {
    TRIREME_ASSERT(other.environment_name() != field.environment_name(),
                   "fields {} and {} share {}", other.key, field.key, field.environment_name());
  }
  TRIREME_ASSERT(field.rule.kept(field.built_in), "the built-in value of {} breaks its rule",
                 field.key);
  fields_.push_back(std::move(field));
}

const Field* Fields::find(const std::string& key) const {
  const auto found = std::find_if(fields_.begin(), fields_.end(),
                                  [&](const Field& field) { return field.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

Field* Fields::find(const std::string& key) {
  return const_cast<Field*>(std::as_const(*this).find(key));
}

Field& Fields::at(const std::string& key, const std::string& where) {
  if (Field* field = find(key)) return *field;
  const auto near = nearest_key(key);
  const std::string place = where.empty() || where == key ? "" : one_line(where) + ": ";
  throw AgreedError("{}{}: is not a configuration key; {}", place, one_line(shortened(key, 80)),
                    near ? "did you mean " + *near + "?" : "`trireme train --help` lists them");
}

std::vector<std::string> Fields::sections() const {
  std::vector<std::string> names;
  for (const Field& field : fields_) {
    const std::string name = field.key.substr(0, field.key.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::optional<std::string> Fields::nearest_key(const std::string& key) const {
  if (key.size() > longest_key) return std::nullopt;
  const auto leaf_of = [](const std::string& whole) { return whole.substr(whole.rfind('.') + 1); };
  const std::string leaf = leaf_of(key);
  std::optional<std::string> best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const Field& field : fields_) {
    std::size_t distance = edit_distance(key, field.key);
    bool close = close_enough(distance, key);
    // A right name in the wrong section, or without one, counts as one more typo.
    const std::size_t by_leaf = edit_distance(leaf, leaf_of(field.key)) + 1;
    if (by_leaf < distance) {
      distance = by_leaf;
      close = close_enough(by_leaf - 1, leaf);
    }
    if (distance < least && close) {
      least = distance;
      best = field.key;
    }
  }
  return best;
}

}  // namespace trireme::config
