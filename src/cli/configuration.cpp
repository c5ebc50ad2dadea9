// What subcommands share: the configuration, its help text, and how numbers are shown.
#include <array>
#include <sstream>

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

}  // namespace

ResolvedConfig::ResolvedConfig(const std::string& file, const std::vector<Setting>& settings,
                               comm::Session& session) {
  config.declare(fields);
  Sources sources{settings, file, environ, {}};
  sources.preset = [this](config::Fields& all) {
    if (config.model.preset.empty()) return;
    const model::Preset& preset = model::find_preset(config.model.preset);
    all.from_json({{"model", preset.values}}, config::Source::preset, "preset " + preset.name);
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

void refuse_settings_of_the_run(const std::vector<Setting>& settings,
                                const std::string& subcommand) {
  for (const Setting& setting : settings) {
    for (const char* section : {"model.", "optim.", "precision.", "checkpoint."}) {
      if (!setting.key.starts_with(section)) continue;
      throw AgreedError("--{}: {}: the checkpoint decides it; leave it out", setting.key,
                        subcommand);
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

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
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
