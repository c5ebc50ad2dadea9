// The command line: which subcommand was asked for, and what it is to do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/cli/resolve.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"

namespace trireme::cli {

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

}  // namespace trireme::cli
