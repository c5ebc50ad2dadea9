// The definition of the command line, for those who run it and those who describe it.
#pragma once

#include <CLI/CLI.hpp>

#include "trireme/cli/command.hpp"

namespace trireme::cli {

/// All subcommands, and what the program itself has.
void define(CLI::App& app, Command& command);

}  // namespace trireme::cli
