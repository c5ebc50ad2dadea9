// The manual page and the completion of bash, made from the same definition as the command line
// itself, so that they cannot say anything else.
#pragma once

#include <string>

namespace trireme::cli {

/// trireme.1, for man(1).
std::string manual_page();

/// What bash reads to complete subcommands, flags, fields of the configuration and their choices.
std::string bash_completion();

}  // namespace trireme::cli
