// Text files that a user names.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::schedule {

/// The contents of a file of at most 64 MiB. Throws AgreedError with its path and the reason.
std::string read_small_file(const std::filesystem::path& path);

}  // namespace trireme::schedule
