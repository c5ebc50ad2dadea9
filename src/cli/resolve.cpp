#include "trireme/cli/resolve.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "trireme/cli/command.hpp"

namespace trireme::cli {

namespace {

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

}  // namespace trireme::cli
