#include "files.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::checkpoint {
namespace fs = std::filesystem;

void read_at(const InputFile& file, void* data, std::size_t bytes, std::int64_t offset) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(file.descriptor(), to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(file.path(), fmt::format("read at byte {}", offset), errno);
    if (got == 0) throw Error("{}: ends at byte {}, before its data", file.path().string(), offset);
    to += got;
    bytes -= static_cast<std::size_t>(got);
    offset += got;
  }
}

void expect_size(const InputFile& file, std::int64_t bytes) {
  if (file.size() == bytes) return;
  throw Error("{}: has {} bytes, the manifest says {}; the file is damaged, use another checkpoint",
              file.path().string(), file.size(), bytes);
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

void commit(const fs::path& temporary, const fs::path& final) {
  fs::path old = final;
  old += ".old";
  std::error_code ignored;
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
    sync_path(parent_of(final));
    fs::remove_all(temporary, ignored);  // now the replaced folder; if it stays, prune removes it
  } else {
    if (fs::exists(fs::symlink_status(final))) {
      fs::remove_all(old);
      fs::rename(final, old);
    }
    if (::rename(temporary.c_str(), final.c_str()) != 0) {
      const int reason = errno;
      ::rename(old.c_str(), final.c_str());
      throw_file_error(temporary, "rename", reason);
    }
    sync_path(parent_of(final));
  }
  fs::remove_all(old, ignored);
}

}  // namespace trireme::checkpoint
