// Fields from and to files: TOML, the environment, JSON.
#include <algorithm>
#include <cstdint>
#include <sstream>

#include <toml++/toml.h>

#include "trireme/core/config.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/toml.hpp"

namespace trireme::config {

namespace {

std::string joined(const std::string& outer, std::string_view key) {
  return outer.empty() ? std::string(key) : outer + "." + std::string(key);
}

bool is_section(const Fields& fields, const std::string& path) {
  return std::any_of(fields.all().begin(), fields.all().end(),
                     [&](const Field& field) { return field.key.starts_with(path + "."); });
}

[[noreturn]] void unknown_section(const Fields& fields, const std::string& path,
                                  const std::string& where) {
  const auto near = path.size() > 80 ? std::nullopt : nearest(path, fields.sections());
  throw AgreedError("{}: {}: is not a section; {}", one_line(where), one_line(shortened(path, 80)),
                    near ? "did you mean " + *near + "?" : "`trireme train --help` lists them");
}

/// The place behind the string that begins at `at`, or the end of line where it is not closed.
std::size_t end_of_string(const std::string& text, std::size_t at) {
  const char quote = text[at];
  const bool escapes = quote == '"';
  const std::string close(3, quote);
  const bool lines = text.compare(at, 3, close) == 0;
  for (at += lines ? 3 : 1; at < text.size(); ++at) {
    if (escapes && text[at] == '\\') {
      ++at;
    } else if (lines && text.compare(at, 3, close) == 0) {
      at += 3;
      // Up to two more belong to the content.
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    } else if (!lines && text[at] == quote) {
      return at + 1;
    } else if (!lines && text[at] == '\n') {
      return at;
    }
  }
  return text.size();
}

/// Tables in tables are built, walked and freed recursively: a key of a hundred thousand parts
/// would run out of stack. None of ours has more than three.
void refuse_nesting(const std::string& text, const std::string& name) {
  constexpr int most_dots = 32, most_brackets = 32;
  int line = 1, dots = 0, brackets = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, at);
      line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                          text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '\n') ++line, dots = 0;
    if (c == '.') ++dots;
    if (c == '[' || c == '{') ++brackets;
    if ((c == ']' || c == '}') && brackets > 0) --brackets;
    if (dots > most_dots || brackets > most_brackets) {
      throw AgreedError("{}:{}: tables are nested too deep; write [section] and key = value",
                        one_line(name), line);
    }
    ++at;
  }
}

toml::table parse_table(const std::string& text, const std::string& name) {
  refuse_nesting(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw AgreedError("{}:{}: is not TOML: {}; mend column {}", one_line(name),
                      error.source().begin.line, one_line(std::string(error.description())),
                      error.source().begin.column);
  }
}

/// Tables are sections, everything else is a field's value. `name`: of the file.
void from_toml_at(Fields& fields, const toml::table& table, const std::string& path,
                  const std::string& name) {
  for (const auto& [last, node] : table) {
    const std::string key = joined(path, last.str());
    const std::string where = fmt::format("{}:{}", name, node.source().begin.line);
    const toml::table* inner = node.as_table();
    if (inner != nullptr && fields.find(key) == nullptr) {
      if (inner->empty() && !is_section(fields, key)) unknown_section(fields, key, where);
      from_toml_at(fields, *inner, key, name);
      continue;
    }
    if (is_section(fields, key)) {
      throw AgreedError("{}: {}: is a section, not a value; write [{}] and its keys below it",
                        one_line(where), key, key);
    }
    Field& field = fields.at(key, where);
    if (const auto* flag = node.as_boolean()) {
      field.set(flag->get(), Source::file, where);
    } else if (const auto* integer = node.as_integer()) {
      field.set(integer->get(), Source::file, where);
    } else if (const auto* number = node.as_floating_point()) {
      field.set(number->get(), Source::file, where);
    } else if (const auto* text = node.as_string()) {
      field.set(text->get(), Source::file, where);
    } else {
      const char* kind = node.is_table()   ? "a table"
                         : node.is_array() ? "an array"
                                           : "a date or time";
      throw ConfigError(one_line(where) + ": " + key, kind,
                        fmt::format("must be one value ({})", field.type_name()),
                        "write " + key + " = value");
    }
  }
}

/// Lines that are printable remain lines.
std::string quoted(const std::string& text) {
  std::string escaped;
  bool lines = text.ends_with('\n');
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    lines = lines && (c == '\n' || (c >= ' ' && c <= '~'));
    escaped += c;
  }
  return lines ? "\"\"\"\n" + escaped + "\"\"\"" : '"' + one_line(escaped) + '"';
}

std::string toml_value(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  std::string digits = to_string(value);
  // In TOML 1.0 and 1 differ in type, and only the former keeps the sign of −0.
  if (std::holds_alternative<double>(value) && digits.find_first_of(".e") == std::string::npos) {
    digits += ".0";
  }
  return digits;
}

/// Where a value in the printed configuration comes from.
std::string remark(const Field& field) {
  if (field.source == Source::built_in) return field.value() == field.built_in ? "" : "derived";
  return field.origin.empty() ? name_of(field.source) : one_line(field.origin);
}

void from_json_at(Fields& fields, const nlohmann::json& values, const std::string& path,
                  Source source, const std::string& where) {
  for (const auto& [key, entry] : values.items()) {
    const std::string full = joined(path, key);
    if (entry.is_object() && fields.find(full) == nullptr) {
      if (entry.empty() && !is_section(fields, full)) unknown_section(fields, full, where);
      from_json_at(fields, entry, full, source, where);
      continue;
    }
    Field& field = fields.at(full, where);
    if (entry.is_boolean()) {
      field.set(entry.get<bool>(), source, where);
    } else if (entry.is_number_unsigned() && entry.get<std::uint64_t>() > INT64_MAX) {
      throw ConfigError(one_line(where) + ": " + full, entry.dump(), "must fit 64 bits",
                        "use a smaller number");
    } else if (entry.is_number_integer()) {
      field.set(entry.get<std::int64_t>(), source, where);
    } else if (entry.is_number_float()) {
      field.set(entry.get<double>(), source, where);
    } else if (entry.is_string()) {
      field.set(entry.get<std::string>(), source, where);
    } else {
      throw ConfigError(one_line(where) + ": " + full, entry.type_name(),
                        fmt::format("must be one value ({})", field.type_name()),
                        "write a value of that type");
    }
  }
}

}  // namespace

void Fields::read_toml(const std::filesystem::path& path) {
  parse_toml(read_named_file(path, "TOML", std::int64_t{1} << 20), path.string());
}

void Fields::parse_toml(const std::string& text, const std::string& name) {
  from_toml_at(*this, parse_table(text, name), "", name);
}

nlohmann::json toml_as_json(const std::string& text, const std::string& name) {
  std::ostringstream json;
  json << toml::json_formatter(parse_table(text, name));
  return nlohmann::json::parse(json.str());
}

void Fields::read_environment(char** environment) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || !text.starts_with("TRIREME_")) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(variables.begin(), variables.end());  // the same complaint whatever the shell's order

  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.environment_name());
  for (const auto& [name, text] : variables) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) {
      fields_[static_cast<std::size_t>(found - names.begin())].set_text(text, Source::environment,
                                                                        name);
      continue;
    }
    for (const std::string& section : sections()) {
      const std::string start = Field{section + ".", {}, {}, {}, {}, {}, {}}.environment_name();
      if (!name.starts_with(start)) continue;
      // Without the common start, which would make everything look near.
      std::vector<std::string> ends;
      for (const std::string& other : names) {
        if (other.starts_with(start)) ends.push_back(other.substr(start.size()));
      }
      const auto near = nearest(name.substr(start.size()), ends);
      throw AgreedError(
          "{}: is not a field of section {}; {}", one_line(name), section,
          near ? "did you mean " + start + *near + "?" : "`trireme train --help` lists them");
    }
  }
}

nlohmann::json Fields::to_json() const {
  nlohmann::json values = nlohmann::json::object();
  for (const Field& field : fields_) {
    std::string place = "/" + field.key;
    std::replace(place.begin(), place.end(), '.', '/');
    values[nlohmann::json::json_pointer(place)] = config::to_json(field.value());
  }
  return values;
}

void Fields::from_json(const nlohmann::json& values, Source source, const std::string& where) {
  if (!values.is_object()) {
    throw AgreedError("{}: is not a JSON object; a configuration maps sections to keys",
                      one_line(where));
  }
  from_json_at(*this, values, "", source, where);
}

nlohmann::json Fields::provenance() const {
  nlohmann::json all = nlohmann::json::object();
  for (const Field& field : fields_) {
    all[field.key] = {{"value", config::to_json(field.value())},
                      {"source", name_of(field.source)},
                      {"origin", field.origin}};
  }
  return all;
}

std::string Fields::to_toml() const {
  const auto section_of = [](const Field& field) {
    const std::size_t dot = field.key.rfind('.');
    return dot == std::string::npos ? std::string() : field.key.substr(0, dot);
  };
  std::vector<std::string> names{""};  // keys without a section must come before every header
  for (const Field& field : fields_) {
    if (std::find(names.begin(), names.end(), section_of(field)) == names.end()) {
      names.push_back(section_of(field));
    }
  }
  std::string text;
  for (const std::string& name : names) {
    if (!name.empty()) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", name);
    for (const Field& field : fields_) {
      if (section_of(field) != name) continue;
      const std::string key = name.empty() ? field.key : field.key.substr(name.size() + 1);
      const std::string line = key + " = " + toml_value(field.value());
      const std::string origin = remark(field);
      text += origin.empty() ? line + "\n" : fmt::format("{:<34}  # {}\n", line, origin);
    }
  }
  return text;
}

}  // namespace trireme::config
