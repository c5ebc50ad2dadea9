// Names of checkpoint folders.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::checkpoint {

/// "step-00001000".
std::string step_name(std::int64_t step);

}  // namespace trireme::checkpoint
