#include "trireme/report/files.hpp"

#include <cerrno>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path) {
  throw Error("{}: cannot be written: {}", path.string(), std::strerror(errno));
}

}  // namespace

int Descriptor::close() {
  const int result = number_ < 0 ? 0 : ::close(number_);
  number_ = -1;
  return result;
}

SizeLimitGuard::SizeLimitGuard() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &mask, &before_);
}

SizeLimitGuard::~SizeLimitGuard() {
  if (sigismember(&before_, SIGXFSZ) == 1) return;  // an outer guard sees to it
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGXFSZ);
  const timespec at_once{};
  while (sigtimedwait(&mask, nullptr, &at_once) > 0) {  // those that came while held back
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void write_file(const fs::path& path, std::string_view text) {
  const SizeLimitGuard guard;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) fail(path);
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0 || file.close() != 0) fail(path);
}

void replace_file(const fs::path& path, std::string_view text) {
  fs::path temporary = path;
  temporary += ".tmp";
  try {
    write_file(temporary, text);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path);
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void sync_folder(const fs::path& folder) {
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) fail(folder);
  // EINVAL: a file system that has no such thing as an fsync of a folder.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(folder);
}

}  // namespace trireme::report
