// System calls on checkpoint files, with errors that say which file and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/report/files.hpp"

namespace trireme::checkpoint {

/// Opens a regular file for reading; refuses symbolic links and anything else that is not a file.
/// Throws Error. `bytes` receives its size.
int open_regular(const std::filesystem::path& path, std::int64_t& bytes);

/// Fills `data` from `offset` on; throws Error, also at the end of the file.
void read_at(int file, const std::filesystem::path& path, void* data, std::size_t bytes,
             std::int64_t offset);

/// Throws Error with the system's reason.
void write_at(int file, const std::filesystem::path& path, const void* data, std::size_t bytes,
              std::int64_t offset);

/// The whole of a regular file of at most `limit` bytes.
std::string read_text(const std::filesystem::path& path, std::int64_t limit);

/// Renames `temporary` to `final`. A folder `final` that is there already is replaced so that at
/// any moment it is found whole, under its name or (where the file system cannot exchange names) as
/// final.old, and is then removed.
void commit(const std::filesystem::path& temporary, const std::filesystem::path& final);

}  // namespace trireme::checkpoint
