#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

std::string_view mend_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that disk or choose another folder";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f) or choose smaller shards";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may use or ask for access";
    case ENOENT:
      return "check the name";
    default:
      return "check the path and the disk";
  }
}

void fail(const std::filesystem::path& path, std::string_view verb, int error) {
  throw Error("{}: cannot {}: {}; {}", path.string(), verb, std::generic_category().message(error),
              mend_of(error));
}

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(path, "open", errno);
  struct stat status {};
  const int result = ::fstat(descriptor_, &status);
  const int error = errno;
  if (result != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    if (result != 0) fail(path, "open", error);
    throw Error("{}: is not a regular file; name a file", path.string());
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { ::close(descriptor_); }

std::size_t InputFile::read(void* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(descriptor_, static_cast<char*>(data) + done, bytes - done);
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(path_, "read", errno);
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(path, "create", errno);
  buffer_.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, buffer_bytes - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + part);
    from += part;
    bytes -= part;
    if (buffer_.size() == buffer_bytes) flush();
  }
}

void OutputFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t put = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (put < 0) {
      if (errno == EINTR) continue;
      fail(path_, "write", errno);
    }
    done += static_cast<std::size_t>(put);
  }
  buffer_.clear();
}

void OutputFile::finish(bool sync) {
  flush();
  if (sync && ::fsync(descriptor_) != 0) fail(path_, "write", errno);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) fail(path_, "write", errno);
}

std::string read_small_file(const std::filesystem::path& path, std::int64_t limit) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) fail(path, "open", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error("{}: is not a regular file; links are not followed", path.string());
  }
  InputFile file(path);
  if (file.size() > limit) {
    throw Error("{}: {} bytes, expected at most {}; restore the file", path.string(), file.size(),
                limit);
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
}

void sync_path(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open", errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail(path, "write", error);
}

FileSizeSignalGuard::FileSizeSignalGuard() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

FileSizeSignalGuard::~FileSizeSignalGuard() {
  if (sigismember(&before_, SIGXFSZ) == 1) return;
  // One that is pending would kill the process as soon as it is let through.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  const timespec now{};
  while (sigtimedwait(&signals, nullptr, &now) == SIGXFSZ) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace trireme::data
