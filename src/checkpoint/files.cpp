#include "files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::checkpoint {
namespace fs = std::filesystem;

int open_regular(const fs::path& path, std::int64_t& bytes) {
  // O_NONBLOCK: a named pipe must not hold us up before it is recognised.
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 && errno == ELOOP) {
    throw Error("{}: is a symbolic link; a checkpoint's files lie in its own folder",
                path.string());
  }
  if (file < 0) throw Error("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw Error("{}: is not a regular file", path.string());
  }
  bytes = status.st_size;
  return file;
}

void read_at(int file, const fs::path& path, void* data, std::size_t bytes, std::int64_t offset) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(file, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error("{}: cannot be read at byte {}: {}", path.string(), offset, std::strerror(errno));
    }
    if (got == 0) throw Error("{}: ends at byte {}, before its data", path.string(), offset);
    to += got;
    bytes -= static_cast<std::size_t>(got);
    offset += got;
  }
}

void write_at(int file, const fs::path& path, const void* data, std::size_t bytes,
              std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(file, from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw Error("{}: cannot be written: {}", path.string(), std::strerror(errno));
    from += put;
    bytes -= static_cast<std::size_t>(put);
    offset += put;
  }
}

std::string read_text(const fs::path& path, std::int64_t limit) {
  std::int64_t bytes = 0;
  const report::Descriptor file(open_regular(path, bytes));
  if (bytes > limit) throw Error("{}: has {} bytes, more than {}", path.string(), bytes, limit);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  read_at(file.get(), path, text.data(), text.size(), 0);
  return text;
}

void commit(const fs::path& temporary, const fs::path& final) {
  fs::path old = final;
  old += ".old";
  std::error_code ignored;
  const fs::path parent = final.has_parent_path() ? final.parent_path() : fs::path(".");
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
    report::sync_folder(parent);
    fs::remove_all(temporary, ignored);  // now the replaced folder; if it stays, prune removes it
  } else {
    if (fs::exists(fs::symlink_status(final))) {
      fs::remove_all(old);
      fs::rename(final, old);
    }
    if (::rename(temporary.c_str(), final.c_str()) != 0) {
      const int reason = errno;
      ::rename(old.c_str(), final.c_str());
      throw Error("{}: cannot be renamed: {}", temporary.string(), std::strerror(reason));
    }
    report::sync_folder(parent);
  }
  fs::remove_all(old, ignored);
}

}  // namespace trireme::checkpoint
