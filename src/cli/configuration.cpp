// What train, evaluate and generate share: the configuration and how numbers are shown.
#include <array>

#include <unistd.h>

#include "trireme/model/config.hpp"

#include "commands.hpp"

namespace trireme::cli {

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

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
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
