// Which machine this process runs on, and what it may use of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

std::string host_name();

/// Another text after each start of the machine; empty where /proc has none.
std::string boot_id();

/// Throws Error where `ulimit -v` leaves less than `bytes` of address space. MPI, HDF5 and oneDNN
/// end with a segmentation fault where an allocation of theirs fails: `users` names which are next.
void require_address_space(std::size_t bytes, std::string_view users);

}  // namespace trireme
