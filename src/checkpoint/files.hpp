// Files and folders of checkpoints: pieces at given offsets, and folders that change places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/core/files.hpp"

namespace trireme::checkpoint {

/// "step-00001000": the name of a checkpoint folder.
std::string step_name(std::int64_t step);

/// Fills `data` from `offset` on; throws Error, also at the end of the file.
void read_at(const InputFile& file, void* data, std::size_t bytes, std::int64_t offset);

/// Throws Error unless `file` has the size in the manifest.
void expect_size(const InputFile& file, std::int64_t bytes);

/// Throws Error unless `path` is a folder; a symbolic link to one is none.
void expect_folder(const std::filesystem::path& path);

/// Throws Error with the system's reason; `path` names the file.
void write_at(const Descriptor& file, const std::filesystem::path& path, const void* data,
              std::size_t bytes, std::int64_t offset);

/// Renames `temporary` to `final`. A folder `final` that is there already is replaced so that at
/// any moment it is found whole, under its name or (where the file system cannot exchange names) as
/// final.old. It is then removed, or kept as final.damaged where it is no whole checkpoint. An
/// Error leaves all names as they were.
void commit(const std::filesystem::path& temporary, const std::filesystem::path& final);

}  // namespace trireme::checkpoint
