// Which machine this process runs on.
#pragma once

#include <string>

namespace trireme {

std::string host_name();

/// Another text after each start of the machine; empty where /proc has none.
std::string boot_id();

}  // namespace trireme
