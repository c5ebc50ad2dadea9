// The value of data.path: a folder, a list of weights and folders, or a TOML file (docs/data.md).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/toml.hpp"
#include "trireme/data/corpus.hpp"

namespace trireme::data {
namespace {

using nlohmann::json;

constexpr std::string_view blanks = " \t";
constexpr std::int64_t most_spec_bytes = std::int64_t{16} << 20;

[[noreturn]] void refuse(const std::string& where, const std::string& what,
                         const std::string& remedy) {
  throw AgreedError("{}: {}; {}", config::one_line(where), what, remedy);
}

void check_weight(const std::string& where, const std::string& source, double weight) {
  if (std::isfinite(weight) && weight >= 0 && weight <= 1e15) return;
  refuse(where,
         fmt::format("source {}: weight = {}: must be a number from 0 to 1e15", source, weight),
         "use a share such as 0.3");
}

/// The name of a source that has none of its own.
std::string folder_name(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::path path = std::filesystem::absolute(folder, code).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

/// The values of a table of a blend's file, each asked for once.
class Table {
 public:
  Table(const json& values, std::string where, const char* remedy = "write [[source]] and its keys")
      : values_(values), where_(std::move(where)) {
    if (!values.is_object()) refuse(where_, "must be a table", remedy);
  }
  /// After all keys were asked for: no other one may be there.
  void finish() const {
    for (const auto& [key, value] : values_.items()) {
      if (std::ranges::find(keys_, key) != keys_.end()) continue;
      const auto near = config::nearest(key, keys_);
      refuse(where_, config::one_line(key) + ": unknown key",
             near ? "did you mean " + *near + "?" : "see docs/data.md");
    }
  }
  const json* find(const std::string& key) {
    keys_.push_back(key);
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &*found;
  }
  std::string text(const std::string& key, const std::string& absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_string()) {
      refuse(where_, fmt::format("{} = {}: must be a text", key, value->dump()),
             "write it in quotes");
    }
    if (value->get<std::string>().empty()) {
      refuse(where_, key + " = \"\": must not be empty",
             "write a " + key + ", or leave the key out");
    }
    return value->get<std::string>();
  }
  double number(const std::string& key, double absent) {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number() || value->get<double>() < 0) {
      refuse(where_,
             fmt::format("{} = {}: must be a finite number, at least 0", key, value->dump()),
             "write a number such as 0.3");
    }
    return value->get<double>();
  }
  std::int64_t tokens(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return 0;
    if (!value->is_number_integer() || value->get<std::int64_t>() < 0) {
      refuse(where_, fmt::format("{} = {}: must be a number of tokens", key, value->dump()),
             "write a whole number");
    }
    return value->get<std::int64_t>();
  }
  const std::string& where() const { return where_; }

 private:
  const json& values_;
  std::string where_;
  std::vector<std::string> keys_;
};

/// The tables of the list `key`; absent: none.
std::vector<Table> tables_of(Table& file, const std::string& key) {
  std::vector<Table> tables;
  const json* list = file.find(key);
  if (list == nullptr) return tables;
  if (!list->is_array()) {
    refuse(file.where(), key + ": must be a list of tables", fmt::format("write [[{}]]", key));
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    tables.emplace_back((*list)[i], fmt::format("{}: {} {}", file.where(), key, i + 1));
  }
  return tables;
}

std::vector<double> phase_weights(Table& table, const std::vector<CorpusSpec::Source>& sources) {
  const json* found = table.find("weights");
  if (found == nullptr) refuse(table.where(), "has no weights", "write weights = {NAME = 0.5, …}");
  Table weights(*found, table.where() + ": weights", "write weights = {NAME = 0.5, …}");
  std::vector<double> result;
  for (const CorpusSpec::Source& source : sources) result.push_back(weights.number(source.name, 0));
  weights.finish();
  return result;
}

CorpusSpec read_spec(const std::filesystem::path& path) {
  const json file =
      config::toml_as_json(read_named_file(path, "TOML", most_spec_bytes), path.string());
  Table top(file, path.string());
  CorpusSpec spec;
  std::vector<double> weights;
  for (Table& table : tables_of(top, "source")) {
    std::filesystem::path folder = table.text("path", "");
    if (folder.empty())
      refuse(table.where(), "has no path", "name a folder made by `trireme prepare`");
    folder = (path.parent_path() / folder).lexically_normal();
    spec.sources.push_back({.path = folder.string(),
                            .name = table.text("name", folder_name(folder)),
                            .most_epochs = table.number("most_epochs", 0)});
    weights.push_back(table.number("weight", -1));
    table.finish();
  }
  if (spec.sources.empty())
    refuse(top.where(), "has no source", "write [[source]] with path and weight");
  const bool weighed = std::ranges::any_of(weights, [](double weight) { return weight >= 0; });
  for (Table& table : tables_of(top, "phase")) {
    if (weighed) {
      refuse(table.where(), "has weights, and so have sources", "leave those of sources out");
    }
    spec.phases.push_back({.begin = table.tokens("begin"),
                           .end = table.tokens("end"),
                           .weights = phase_weights(table, spec.sources)});
    table.finish();
  }
  top.finish();
  if (!spec.phases.empty()) return spec;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0) continue;
    refuse(top.where(), fmt::format("source {} has no weight", spec.sources[i].name),
           "write weight = NUMBER, or [[phase]] with weights");
  }
  spec.phases.push_back({.weights = std::move(weights)});
  return spec;
}

/// "0.7 books, 0.3 web".
CorpusSpec read_list(const std::string& text) {
  CorpusSpec spec{.sources = {}, .phases = {{}}};
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string entry = text.substr(at, comma - at);
    at = comma + 1;
    entry.erase(0, std::min(entry.find_first_not_of(blanks), entry.size()));
    entry.erase(entry.find_last_not_of(blanks) + 1);
    double weight = 0;
    const char* const end = entry.data() + entry.size();
    const auto [rest, error] = std::from_chars(entry.data(), end, weight);
    const auto number = static_cast<std::size_t>(rest - entry.data());
    const std::size_t folder_at = std::min(entry.find_first_not_of(blanks, number), entry.size());
    if (error != std::errc() || folder_at == number || folder_at == entry.size()) {
      refuse("data.path = " + text, fmt::format("\"{}\" is not a weight and a folder", entry),
             "write \"0.7 books, 0.3 web\"");
    }
    const std::string folder = entry.substr(folder_at);
    spec.sources.push_back({.path = folder, .name = folder_name(folder)});
    spec.phases.front().weights.push_back(weight);
  }
  return spec;
}

void check_phases(const CorpusSpec& spec, const std::string& where) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < spec.phases.size(); ++i) {
    const CorpusSpec::Phase& phase = spec.phases[i];
    const std::string name = fmt::format("{}: phase {}", where, i + 1);
    double all = 0;
    for (std::size_t s = 0; s < spec.sources.size(); ++s) {
      check_weight(where, spec.sources[s].name, phase.weights[s]);
      all += phase.weights[s];
    }
    if (all == 0) refuse(name, "all weights are 0", "give a source a weight");
    const bool last = i + 1 == spec.phases.size();
    if (i > 0 && end != 0 && phase.begin != end) {
      refuse(name,
             fmt::format("begins at {} tokens, and the one before ends at {}", phase.begin, end),
             "let them be equal");
    }
    if (i == 0 && phase.begin != 0) refuse(name, "the first must begin at 0", "write begin = 0");
    if (i > 0 && phase.begin <= spec.phases[i - 1].begin) {
      refuse(name, "begins no later than the one before", "write phases in their order");
    }
    if (phase.end != 0 && phase.end <= phase.begin) {
      refuse(name, fmt::format("ends at {} tokens and begins at {}", phase.end, phase.begin),
             last ? "leave end out, or raise it" : "raise end");
    }
    end = phase.end;
  }
}

/// Sources by name, and the weights of phases with them.
void sort_sources(CorpusSpec& spec, const std::string& where) {
  std::vector<std::size_t> order(spec.sources.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::size_t i) { return spec.sources[i].name; });
  const CorpusSpec old = spec;
  for (std::size_t i = 0; i < order.size(); ++i) {
    spec.sources[i] = old.sources[order[i]];
    if (i > 0 && spec.sources[i].name == spec.sources[i - 1].name) {
      refuse(where, fmt::format("two sources are named {}", spec.sources[i].name),
             "give one another name in a TOML file");
    }
    for (std::size_t p = 0; p < spec.phases.size(); ++p) {
      spec.phases[p].weights[i] = old.phases[p].weights[order[i]];
    }
  }
}

/// A number and a blank, and what follows.
bool is_list(const std::string& path) {
  std::error_code code;
  if (std::filesystem::exists(path, code)) return false;
  const std::size_t first = std::min(path.find_first_not_of(blanks), path.size());
  double weight = 0;
  const char* const end = path.data() + path.size();
  const auto [rest, error] = std::from_chars(path.data() + first, end, weight);
  return error != std::errc::invalid_argument && rest < end && blanks.find(*rest) != blanks.npos;
}

}  // namespace

bool is_blend(const std::string& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) return false;
  return path.ends_with(".toml") || is_list(path);
}

CorpusSpec parse_corpus(const std::string& path) {
  CorpusSpec spec{.sources = {{.path = path, .name = folder_name(path)}},
                  .phases = {{.weights = {1}}}};
  if (is_blend(path)) spec = is_list(path) ? read_list(path) : read_spec(path);
  check_phases(spec, path);
  sort_sources(spec, path);
  return spec;
}

}  // namespace trireme::data
