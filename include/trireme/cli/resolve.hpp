// Where configuration values come from, and which source wins: built-in < preset < file <
// environment < command line.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/session.hpp"
#include "trireme/core/config.hpp"

namespace trireme::cli {

/// One --section.key of the command line.
struct Setting {
  std::string key;   // "model.layers"
  std::string text;  // as typed; "true" for a yes/no field without a value
};

/// Takes every `--section.key VALUE` and `--section.key=VALUE` out of `arguments`, up to a lone
/// `--`. A yes/no field needs no value; a following argument is its value only when it is one of
/// true, false, yes, no, on, off. What looks like a field (`--` and a dot before any `=`) and is
/// none is a UsageError that names the nearest, as is a missing value.
std::vector<Setting> take_settings(const config::Fields& fields,
                                   std::vector<std::string>& arguments);

/// All sources but the built-in values.
struct Sources {
  std::vector<Setting> settings;  // of the command line
  std::filesystem::path file;     // TOML; empty: none
  char** environment = nullptr;
  /// Called when all else is read, so that it knows which preset won; it sets values with
  /// Source::preset.
  std::function<void(config::Fields&)> preset;
};

/// Fills the fields from all sources; throws AgreedError that names the wrong source.
void resolve(config::Fields& fields, const Sources& sources);

/// Resolves on rank 0 and gives the others its result, values and origins alike: launchers do not
/// carry the environment to every node, and a file system may show a file late. Collective.
void resolve(config::Fields& fields, const Sources& sources, comm::Session& session);

/// Runs `work` on rank 0 while the other ranks wait without taking a core; every rank returns what
/// it returned. An Error of `work` is an AgreedError on every rank. Collective.
std::string on_rank_zero(comm::Session& session, const std::function<std::string()>& work);

/// `fields` as a help text: by section, each with its default, `width` columns wide.
std::string describe(const config::Fields& fields, std::size_t width = 80);

}  // namespace trireme::cli
