// The command line: which subcommand was asked for, what it is to do, and where the values of its
// configuration come from (built-in < preset < file < environment < command line).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/session.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

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

/// A mistake on the command line itself: an unknown subcommand or flag, a missing value. Every rank
/// has the same arguments, so all ranks throw it. Exit code 2.
class UsageError : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

/// What the command line asks for.
struct Command {
  /// The job; collective over the session. Returns the exit code, the same on every rank.
  std::function<int(comm::Session&, const std::vector<Setting>&)> run;
  /// The --section.key flags, for subcommands that take a configuration.
  std::vector<Setting> settings;
};

/// Parses `arguments` (without the program's name). --help and --version are jobs like any
/// other, which print on rank 0. Throws UsageError, or ConfigError for an option's value.
Command parse(std::vector<std::string> arguments);

// Written from the definition of the command line:
/// trireme.1, for man(1).
std::string manual_page();
/// docs/configuration.md.
std::string configuration_reference();
/// What bash reads to complete subcommands, flags, fields of the configuration and their choices.
std::string bash_completion();

}  // namespace trireme::cli
