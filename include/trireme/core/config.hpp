// The configuration mechanism. A module declares each of its fields once, as a member of a plain
// struct with a default and one line in `declare`; that line yields parsing (TOML, environment,
// command line), help, printing, and the record of where the value came from.
//
//   struct OptimConfig {
//     double learning_rate = 3e-4;
//     void declare(config::Fields& fields) {
//       fields.add("learning_rate", learning_rate, "peak learning rate", config::positive());
//     }
//   };
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/core/error.hpp"

namespace trireme::config {

/// The types a field may have.
using Value = std::variant<bool, std::int64_t, double, std::string>;

std::string to_string(const Value& value);  // as it would be typed; shortest form that reads back
nlohmann::json to_json(const Value& value);

/// A rule on one value.
struct Rule {
  std::function<bool(const Value&)> kept;
  std::string text;    // "must be at least 1"
  std::string remedy;  // "use 1 or more"
  std::function<std::string(const Value&)>
      suggest{};                       // a remedy that depends on the value; used instead
  std::vector<std::string> choices{};  // all values that keep it, where they are few
};
Rule at_least(std::int64_t bound);
Rule positive();                              // > 0, any number
Rule non_negative();                          // ≥ 0, any number
Rule in_range(double low, double high);       // low ≤ x ≤ high
Rule below(double low, double high);          // low ≤ x < high
Rule one_of(std::vector<std::string> words);  // the nearest one is offered as the remedy
Rule any();

/// Where a value came from, weakest first.
enum class Source { built_in, preset, file, environment, command_line };
std::string name_of(Source source);

/// One declared field, bound to the member that it fills.
struct Field {
  std::string key;   // "model.layers"
  std::string help;  // one line, with units
  Rule rule;
  Value built_in;  // the default
  std::variant<bool*, std::int64_t*, double*, std::string*> target;
  Source source = Source::built_in;
  std::string origin;  // "run.toml:12", "TRIREME_MODEL_LAYERS", "--model.layers"

  Value value() const;
  /// Reads `text`; throws ConfigError when it is not of the field's type or breaks its rule.
  /// Integers may be written as 1e6 and 1_000_000; yes/no as true, false, yes, no, on, off, 1, 0. A
  /// value from a weaker source is checked and then ignored: sources may be read in any order.
  void set_text(const std::string& text, Source from, const std::string& where);
  /// The same for a typed value; whole numbers pass between integer and number.
  void set(const Value& value, Source from, const std::string& where);
  std::string environment_name() const;  // "TRIREME_MODEL_LAYERS"
  std::string type_name() const;         // "integer", "number", "yes/no", "text"
  bool is_flag() const;                  // yes/no: needs no value on the command line
};

/// All fields of a program, in the order of declaration.
class Fields {
 public:
  /// Runs `section.declare(*this)` with "name." before its keys.
  template <class Section>
  void section(const std::string& name, Section& section) {
    std::string outer = std::exchange(prefix_, prefix_ + name + ".");
    section.declare(*this);
    prefix_ = std::move(outer);
  }
  template <class T>
  void add(const std::string& key, T& target, std::string help, Rule rule = any()) {
    insert({prefix_ + key, std::move(help), std::move(rule), Value(target), &target, {}, {}});
  }

  /// The field, or null.
  Field* find(const std::string& key);
  const Field* find(const std::string& key) const;
  /// The field; throws AgreedError that names the nearest key. `where` is where the key was used.
  Field& at(const std::string& key, const std::string& where);
  std::vector<Field>& all() { return fields_; }
  const std::vector<Field>& all() const { return fields_; }

  /// Reads a TOML file: each leaf is a field. Throws AgreedError with file and line.
  void read_toml(const std::filesystem::path& path);
  /// The same for a file's contents; messages and origins call the file `name`.
  void parse_toml(const std::string& text, const std::string& name);
  /// Reads every TRIREME_SECTION_KEY variable; an unknown one under a section's name is an error,
  /// other TRIREME_ variables are not ours.
  void read_environment(char** environment);

  /// {"model": {"layers": 12, …}, …}; exactly what `from_json` reads.
  nlohmann::json to_json() const;
  /// Sets every field present in `values`, with `source`; unknown keys throw.
  void from_json(const nlohmann::json& values, Source source, const std::string& where);
  /// {"model.layers": {"value": 12, "source": "file", "origin": "run.toml:3"}, …}.
  nlohmann::json provenance() const;
  /// The resolved configuration as TOML with the origin of each value that is not built in.
  std::string to_toml() const;
  /// The key nearest to `key`, also across sections ("train.learning_rate" gives
  /// "optim.learning_rate"), or nothing when none is close.
  std::optional<std::string> nearest_key(const std::string& key) const;
  /// Names before the first dot, in the order of declaration.
  std::vector<std::string> sections() const;

 private:
  void insert(Field field);
  std::string prefix_;
  std::vector<Field> fields_;
};

/// The case that `value` of the field `key` names. The field has checked its value, so that another
/// one is an error of this program.
template <class Case>
Case select(std::string_view key, const std::string& value,
            std::initializer_list<std::pair<std::string_view, Case>> cases) {
  for (const auto& [name, each] : cases) {
    if (name == value) return each;
  }
  TRIREME_ASSERT(false, "{} = {}", key, value);
}

/// The word of `words` nearest to `word` in edit distance, or nothing when none is close.
std::optional<std::string> nearest(const std::string& word, const std::vector<std::string>& words);

/// Insertions, deletions, replacements and swaps of neighbors that turn `a` into `b`, in any case.
std::size_t edit_distance(const std::string& a, const std::string& b);

/// Whether so many edits of `word` are probably a typo.
bool close_enough(std::size_t distance, const std::string& word);

/// The first `bytes` of `text` or less, cut between characters, and "…" where that is not all.
std::string shortened(const std::string& text, std::size_t bytes);

/// `text` on one line: control characters are written as escapes, as in TOML's basic strings.
std::string one_line(const std::string& text);

}  // namespace trireme::config
