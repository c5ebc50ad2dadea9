// What subcommands share: the configuration from its sources, its help text, and how numbers are
// shown.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "trireme/model/config.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

/// `text` broken at spaces; every line but the first begins in column `indent`.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::istringstream words(text);
  std::string result;
  std::size_t column = indent;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > width) {
      result += fmt::format("\n{:{}}", "", indent);
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

std::string choices_of(const config::Rule& rule) {
  std::string list;
  for (const std::string& choice : rule.choices) {
    if (!choice.empty()) list += (list.empty() ? "" : ", ") + choice;
  }
  return list.empty() ? "" : fmt::format(" [{}]", list);
}

/// The key of "--section.key" or "--section.key=…"; empty when `argument` is no such flag.
std::string key_of(const std::string& argument) {
  if (!argument.starts_with("--")) return {};
  const std::string name = argument.substr(2, argument.find('=') - 2);
  return name.find('.') == std::string::npos ? std::string() : name;
}

bool is_flag_word(std::string word) {
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  static const std::array<std::string, 6> words{"true", "false", "yes", "no", "on", "off"};
  return std::find(words.begin(), words.end(), word) != words.end();
}

config::Source source_of(const std::string& name) {
  for (const auto source : {config::Source::preset, config::Source::file,
                            config::Source::environment, config::Source::command_line}) {
    if (config::name_of(source) == name) return source;
  }
  return config::Source::built_in;
}

/// Fills section "model" from what train.from names. Throws Error that lists every value which the
/// user has given otherwise.
void take_model(config::Fields& fields, const train::RunConfig& config) {
  const std::string& from = config.train.from;
  model::ModelConfig model = train::start_model(config);
  config::Fields its;
  its.section("model", model);
  const nlohmann::json values = its.to_json().at("model");
  std::string conflicts;
  const auto add = [&](const std::string& conflict) {
    conflicts += (conflicts.empty() ? "" : ", ") + conflict;
  };
  for (const auto& [name, value] : values.items()) {
    config::Field& field = fields.at("model." + name, "train.from");
    const nlohmann::json given = config::to_json(field.value());
    if (field.source == config::Source::built_in || given == value) continue;
    if (name == "preset" || name == "dropout" || name == "attention_dropout") continue;
    const bool may_be_0 =
        name == "vocabulary" || name == "hidden" || name == "kv_heads" || name == "positions";
    if (may_be_0 && given == 0) {  // which leaves it to the model
      field.source = config::Source::built_in;
      continue;
    }
    if (name == "sequence") {
      if (model.rotary() || given.get<std::int64_t>() <= model.trained_length()) continue;
      add(fmt::format("model.sequence = {} ({}) and learned positions for {}", given.dump(),
                      field.origin, model.trained_length()));
      continue;
    }
    add(fmt::format("model.{} = {} ({}) and not {}", name, given.dump(), field.origin,
                    value.dump()));
  }
  if (!conflicts.empty()) {
    throw Error("train.from = {}: its model decides, and differs: {}; leave these out", from,
                conflicts);
  }
  fields.from_json({{"model", values}}, config::Source::preset, "train.from " + from);
}

config::Value value_of(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

}  // namespace

std::vector<Setting> take_settings(const config::Fields& fields,
                                   std::vector<std::string>& arguments) {
  std::vector<Setting> settings;
  std::vector<std::string> others;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") {
      others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                    arguments.end());
      break;
    }
    const std::string key = key_of(arguments[i]);
    if (key.empty()) {
      others.push_back(arguments[i]);
      continue;
    }
    const config::Field* field = fields.find(key);
    if (field == nullptr) {
      const auto near = fields.nearest_key(key);
      throw UsageError(
          "--{}: is not a configuration key; {}", config::one_line(key),
          near ? "did you mean --" + *near + "?" : "`trireme train --help` lists them");
    }
    const std::size_t equals = arguments[i].find('=');
    const bool more = i + 1 < arguments.size();
    if (equals != std::string::npos) {
      settings.push_back({key, arguments[i].substr(equals + 1)});
    } else if (field->is_flag()) {
      settings.push_back({key, more && is_flag_word(arguments[i + 1]) ? arguments[++i] : "true"});
    } else if (more && !arguments[i + 1].starts_with("--")) {
      settings.push_back({key, arguments[++i]});
    } else {
      throw UsageError(
          "--{}: has no value ({}); write --{} VALUE, or --{}=VALUE for one that begins with --",
          key, field->type_name(), key, key);
    }
  }
  arguments = std::move(others);
  return settings;
}

void resolve(config::Fields& fields, const Sources& sources) {
  if (!sources.file.empty()) fields.read_toml(sources.file);
  fields.read_environment(sources.environment);
  for (const Setting& setting : sources.settings) {
    const std::string flag = "--" + setting.key;
    fields.at(setting.key, flag).set_text(setting.text, config::Source::command_line, flag);
  }
  if (sources.preset) sources.preset(fields);
}

void resolve(config::Fields& fields, const Sources& sources, comm::Session& session) {
  const std::string agreed = on_rank_zero(session, [&] {
    resolve(fields, sources);
    return fields.provenance().dump();
  });
  if (session.rank() == 0) return;
  const nlohmann::json all = nlohmann::json::parse(agreed);
  for (config::Field& field : fields.all()) {
    const nlohmann::json& entry = all.at(field.key);
    field.set(value_of(entry.at("value")), source_of(entry.at("source").get<std::string>()),
              entry.at("origin").get<std::string>());
  }
}

std::string on_rank_zero(comm::Session& session, const std::function<std::string()>& work) {
  std::string text;
  std::array<std::int64_t, 2> head{0, 0};  // whether it failed, length of the text
  if (session.rank() == 0) {
    try {
      text = work();
    } catch (const Error& error) {
      head[0] = 1;
      text = error.what();
    }
    head[1] = static_cast<std::int64_t>(text.size());
  }
  MPI_Request request = MPI_REQUEST_NULL;
  comm::mpi_check(MPI_Ibcast(head.data(), 2, MPI_INT64_T, 0, session.world(), &request),
                  "MPI_Ibcast");
  for (int done = 0; done == 0;) {
    comm::mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  text.resize(static_cast<std::size_t>(head[1]));
  TRIREME_ASSERT(head[1] < (std::int64_t{1} << 31), "a message of {} bytes", head[1]);
  comm::mpi_check(MPI_Bcast(text.data(), static_cast<int>(head[1]), MPI_BYTE, 0, session.world()),
                  "MPI_Bcast");
  if (head[0] != 0) throw AgreedError(text);
  return text;
}

ResolvedConfig::ResolvedConfig(const std::string& file, const std::vector<Setting>& settings,
                               comm::Session& session, From from) {
  Sources sources{settings, file, environ, {}};
  sources.preset = [this, from](config::Fields& all) {
    if (!config.model.preset.empty()) {
      const model::Preset& preset = model::find_preset(config.model.preset);
      all.from_json({{"model", preset.values}}, config::Source::preset, "preset " + preset.name);
    }
    if (from == From::decides && !config.train.from.empty()) take_model(all, config);
  };
  resolve(fields, sources, session);
}

void RunSources::add_to(CLI::App& app) {
  app.add_option("--config", file, "configuration in TOML")->type_name("FILE");
  app.add_option("--device", device, "cpu, cuda or auto: as --device.type")->type_name("TEXT");
}

std::vector<Setting> RunSources::with_device(std::vector<Setting> settings) const {
  if (!device.empty()) settings.push_back({"device.type", device});
  return settings;
}

void refuse_settings_of_the_run(const std::vector<Setting>& settings, const std::string& subcommand,
                                const std::string& reason) {
  for (const Setting& setting : settings) {
    for (const char* section : {"model.", "optim.", "precision.", "checkpoint."}) {
      if (!setting.key.starts_with(section) || setting.key == "model.sequence") continue;
      throw AgreedError("--{}: {}: {}; leave it out", setting.key, subcommand, reason);
    }
  }
}

std::string describe(const config::Fields& fields, std::size_t width) {
  constexpr std::size_t indent = 34;  // column of the explanations
  std::string text;
  for (const std::string& section : fields.sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    for (const config::Field& field : fields.all()) {
      if (!field.key.starts_with(section + ".")) continue;
      const std::string value = config::to_string(field.built_in);
      std::string head = fmt::format("  --{}={}", field.key, value.empty() ? "\"\"" : value);
      head += head.size() + 2 > indent ? fmt::format("\n{:{}}", "", indent)
                                       : std::string(indent - head.size(), ' ');
      text += head + wrapped(field.help + choices_of(field.rule), indent, width) + "\n";
    }
  }
  return text;
}

void print_on_root(const comm::Session& session, const std::string& text) {
  if (session.rank() == 0) std::fputs(text.c_str(), stdout);
}

std::string line(const std::string& key, const std::string& value, int width) {
  return fmt::format("{:<{}}{}\n", key, width, value);
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

std::vector<std::int64_t> numbers_of(const std::string& flag, const std::string& list,
                                     const config::Rule& rule) {
  std::vector<std::int64_t> numbers;
  for (const std::string& word : words_of(list)) {
    std::int64_t number = 0;
    config::Field field{.key = flag, .rule = rule, .target = &number};
    field.set_text(word, config::Source::command_line, flag);
    numbers.push_back(number);
  }
  return numbers;
}

std::int64_t parse_size(const std::string& flag, const std::string& text) {
  constexpr std::int64_t kilo = 1000, kibi = 1024;
  static const std::map<std::string, std::int64_t> units = {{"", 1},
                                                            {"B", 1},
                                                            {"KB", kilo},
                                                            {"MB", kilo * kilo},
                                                            {"GB", kilo * kilo * kilo},
                                                            {"TB", kilo * kilo * kilo * kilo},
                                                            {"KIB", kibi},
                                                            {"MIB", kibi * kibi},
                                                            {"GIB", kibi * kibi * kibi},
                                                            {"TIB", kibi * kibi * kibi * kibi}};
  constexpr std::int64_t most = std::int64_t{1} << 50;
  const char* end = text.data() + text.size();
  std::int64_t number = 0;
  const auto [unit, error] = std::from_chars(text.data(), end, number);
  std::string name(unit, end);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto found = units.find(name);
  if (error != std::errc() || found == units.end() || number < 1 || number > most / found->second) {
    throw ConfigError(flag, text, "must be a number above 0 of bytes, KB, MB, GB, KiB, MiB or GiB",
                      "write for example 5GB");
  }
  return number * found->second;
}

std::string bytes_text(std::int64_t bytes) {
  static const std::array<const char*, 5> units{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 999.95 would print as 1000.0.
  for (; value >= 999.95 && unit + 1 < units.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace trireme::cli
