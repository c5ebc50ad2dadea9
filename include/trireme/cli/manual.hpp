// The manual page, the configuration reference and the completion of bash, all written from the
// definition of the command line.
#pragma once

#include <string>

namespace trireme::cli {

/// trireme.1, for man(1).
std::string manual_page();

/// docs/configuration.md.
std::string configuration_reference();

/// What bash reads to complete subcommands, flags, fields of the configuration and their choices.
std::string bash_completion();

}  // namespace trireme::cli
