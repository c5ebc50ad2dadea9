// Helpers of the unit tests of this module.
#pragma once

#include <string>

#include "trireme/core/error.hpp"

namespace trireme::train {

/// The text of the ConfigError that `call` throws, or empty.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace trireme::train
