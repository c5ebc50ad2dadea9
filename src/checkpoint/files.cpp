#include "files.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::checkpoint {
namespace fs = std::filesystem;

void read_at(const InputFile& file, void* data, std::size_t bytes, std::int64_t offset) {
  const std::size_t got = file.read_at(data, bytes, offset);
  if (got == bytes) return;
  throw Error("{}: ends at byte {}, before its data", file.path().string(),
              offset + static_cast<std::int64_t>(got));
}

void expect_size(const InputFile& file, std::int64_t bytes) {
  if (file.size() == bytes) return;
  throw Error("{}: has {} bytes, the manifest says {}; the file is damaged, use another checkpoint",
              file.path().string(), file.size(), bytes);
}

void expect_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) throw_file_error(path, "open", error ? error.value() : ENOENT);
  if (fs::is_symlink(status)) {
    throw Error("{}: is a symbolic link, which is not followed; put the folder itself there",
                path.string());
  }
  if (!fs::is_directory(status)) throw_file_error(path, "open", ENOTDIR);
}

void write_at(const Descriptor& file, const fs::path& path, const void* data, std::size_t bytes,
              std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(file.get(), from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_file_error(path, "write", errno);
    from += put;
    bytes -= static_cast<std::size_t>(put);
    offset += put;
  }
}

namespace {

bool exchange(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

/// For file systems that cannot exchange names.
void replace_in_two_steps(const fs::path& temporary, const fs::path& final) {
  fs::path old = final;
  old += ".old";
  std::error_code error;
  const bool replaces = fs::exists(fs::symlink_status(final, error));
  error.clear();
  if (replaces) fs::remove_all(old, error);
  if (error) throw_file_error(old, "remove", error.value());
  if (replaces && ::rename(final.c_str(), old.c_str()) != 0) {
    throw_file_error(final, "rename", errno);
  }
  try {
    rename_for_good(temporary, final);
  } catch (const Error&) {
    if (replaces) ::rename(old.c_str(), final.c_str());
    throw;
  }
  fs::remove_all(old, error);  // what stays, prune removes
}

}  // namespace

void commit(const fs::path& temporary, const fs::path& final) {
  if (!exchange(temporary, final)) return replace_in_two_steps(temporary, final);
  try {
    sync_path(parent_of(final));
  } catch (const Error&) {
    exchange(temporary, final);
    throw;
  }
  std::error_code ignored;
  fs::remove_all(temporary, ignored);  // now the replaced folder; what stays, prune removes
}

}  // namespace trireme::checkpoint
