// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming,readability-inconsistent-declaration-parameter-name)
#include "support/file_faults.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

using trireme::test::Fault;

std::atomic<bool> armed{false};
std::mutex mutex;  // guards everything below
std::array<char, PATH_MAX> prefix{};
std::array<char, PATH_MAX + 32> struck{};
long counted = 0;
long fails_at = 0;
Fault kind = Fault::io_error;

/// The C library's function.
template <class Call>
Call next(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}
#define TRIREME_NEXT(name) static const auto real = next<decltype(&::name)>(#name)

/// The absolute path of `path` seen from `folder` (a descriptor or AT_FDCWD); not resolved.
void make_absolute(int folder, const char* path, char* to, std::size_t capacity) {
  if (path[0] == '/') {
    std::snprintf(to, capacity, "%s", path);
    return;
  }
  std::array<char, PATH_MAX> at{};
  if (folder == AT_FDCWD) {
    if (::getcwd(at.data(), at.size()) == nullptr) at[0] = '\0';
  } else {
    std::array<char, 64> link{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", folder);
    if (::readlink(link.data(), at.data(), at.size() - 1) < 0) at[0] = '\0';
  }
  const char* between = path[0] == '\0' ? "" : "/";
  const int length = std::snprintf(to, capacity, "%s%s%s", at.data(), between, path);
  if (length < 0 || static_cast<std::size_t>(length) >= capacity)
    to[0] = '\0';  // too long to match
}

/// Whether this operation is the one to fail. Sets errno if so.
bool strikes(const char* operation, int folder, const char* path, bool can_be_short = false) {
  if (!armed.load(std::memory_order_acquire) || path == nullptr) return false;
  const int before = errno;
  std::array<char, PATH_MAX> absolute{};
  make_absolute(folder, path, absolute.data(), absolute.size());
  const std::lock_guard lock(mutex);
  errno = before;
  if (!armed || std::strncmp(absolute.data(), prefix.data(), std::strlen(prefix.data())) != 0) {
    return false;
  }
  if (kind == Fault::short_write && !can_be_short) return false;
  if ((kind == Fault::no_locks) != (std::strcmp(operation, "flock") == 0)) return false;
  if (++counted != fails_at) return false;
  std::snprintf(struck.data(), struck.size(), "%s %s", operation, absolute.data());
  if (kind == Fault::kill) ::kill(::getpid(), SIGKILL);
  errno = kind == Fault::no_space ? ENOSPC : kind == Fault::no_locks ? ENOLCK : EIO;
  return true;
}

bool strikes_open_file(const char* operation, int file, bool can_be_short = false) {
  return strikes(operation, file, "", can_be_short);
}

/// Writes by `write(bytes)`: all bytes, or what the fault allows.
template <class Write>
ssize_t write_some(const char* operation, int file, std::size_t bytes, const Write& write) {
  if (!strikes_open_file(operation, file, bytes >= 2)) return write(bytes);
  return kind == Fault::short_write ? write(bytes / 2) : -1;
}

mode_t mode_of(int flags, va_list list) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

/// Reads TRIREME_FILE_FAULT.
__attribute__((constructor)) void arm_from_environment() {
  const char* request = std::getenv("TRIREME_FILE_FAULT");
  if (request == nullptr) return;
  std::array<char, 32> name{};
  std::array<char, PATH_MAX> below{};
  long at = 0;
  int rank = -1;
  const int fields =
      std::sscanf(request, "%31s %ld %4095s %d", name.data(), &at, below.data(), &rank);
  static constexpr std::array<const char*, 5> names = {"no_space", "io_error", "short_write",
                                                       "kill", "no_locks"};
  int fault = 0;
  while (fault < 5 && std::strcmp(names[static_cast<std::size_t>(fault)], name.data()) != 0) {
    ++fault;
  }
  if (fields < 3 || fault == 5) {
    std::fprintf(stderr, "TRIREME_FILE_FAULT=%s: is not KIND AT PREFIX [RANK]\n", request);
    std::abort();
  }
  if (fields == 4) {
    const char* own = std::getenv("OMPI_COMM_WORLD_RANK");
    if (own == nullptr) own = std::getenv("PMI_RANK");
    if (own == nullptr || std::atoi(own) != rank) return;
  }
  trireme_file_faults_arm(below.data(), at, fault);
}

}  // namespace

extern "C" {

void trireme_file_faults_arm(const char* below, long at, int fault) {
  const std::lock_guard lock(mutex);
  std::snprintf(prefix.data(), prefix.size(), "%s", below);
  struck[0] = '\0';
  counted = 0;
  fails_at = at;
  kind = static_cast<Fault>(fault);
  armed = true;
}

long trireme_file_faults_disarm() {
  const std::lock_guard lock(mutex);
  armed = false;
  return counted;
}

const char* trireme_file_faults_struck() { return struck.data(); }

#define TRIREME_OPEN(name)                                                 \
  int name(const char* path, int flags, ...) {                             \
    TRIREME_NEXT(name);                                                    \
    va_list list;                                                          \
    va_start(list, flags);                                                 \
    const mode_t mode = mode_of(flags, list);                              \
    va_end(list);                                                          \
    return strikes("open", AT_FDCWD, path) ? -1 : real(path, flags, mode); \
  }
TRIREME_OPEN(open)
TRIREME_OPEN(open64)

#define TRIREME_OPENAT(name)                                                     \
  int name(int folder, const char* path, int flags, ...) {                       \
    TRIREME_NEXT(name);                                                          \
    va_list list;                                                                \
    va_start(list, flags);                                                       \
    const mode_t mode = mode_of(flags, list);                                    \
    va_end(list);                                                                \
    return strikes("open", folder, path) ? -1 : real(folder, path, flags, mode); \
  }
TRIREME_OPENAT(openat)
TRIREME_OPENAT(openat64)

// What the compiler calls for open(2) without a mode under _FORTIFY_SOURCE.
int __open_2(const char* path, int flags) { return open(path, flags); }
int __open64_2(const char* path, int flags) { return open64(path, flags); }

int close(int file) {
  TRIREME_NEXT(close);
  const bool fails = strikes_open_file("close", file);
  const int reason = errno;
  const int result = real(file);
  if (!fails) return result;
  errno = reason;
  return -1;
}

ssize_t write(int file, const void* data, std::size_t bytes) {
  TRIREME_NEXT(write);
  return write_some("write", file, bytes, [&](std::size_t part) { return real(file, data, part); });
}

ssize_t writev(int file, const iovec* parts, int count) {
  TRIREME_NEXT(writev);
  if (!strikes_open_file("writev", file)) return real(file, parts, count);
  return -1;
}

ssize_t pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  TRIREME_NEXT(pwrite);
  return write_some("pwrite", file, bytes,
                    [&](std::size_t part) { return real(file, data, part, offset); });
}

ssize_t pwrite64(int file, const void* data, std::size_t bytes, off64_t offset) {
  TRIREME_NEXT(pwrite64);
  return write_some("pwrite", file, bytes,
                    [&](std::size_t part) { return real(file, data, part, offset); });
}

ssize_t read(int file, void* data, std::size_t bytes) {
  TRIREME_NEXT(read);
  return strikes_open_file("read", file) ? -1 : real(file, data, bytes);
}

ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) {
  TRIREME_NEXT(pread);
  return strikes_open_file("pread", file) ? -1 : real(file, data, bytes, offset);
}

ssize_t pread64(int file, void* data, std::size_t bytes, off64_t offset) {
  TRIREME_NEXT(pread64);
  return strikes_open_file("pread", file) ? -1 : real(file, data, bytes, offset);
}

int fsync(int file) {
  TRIREME_NEXT(fsync);
  return strikes_open_file("fsync", file) ? -1 : real(file);
}

int flock(int file, int operation) noexcept {
  TRIREME_NEXT(flock);
  return strikes_open_file("flock", file) ? -1 : real(file, operation);
}

int fdatasync(int file) {
  TRIREME_NEXT(fdatasync);
  return strikes_open_file("fdatasync", file) ? -1 : real(file);
}

int ftruncate(int file, off_t size) noexcept {
  TRIREME_NEXT(ftruncate);
  return strikes_open_file("ftruncate", file) ? -1 : real(file, size);
}

int ftruncate64(int file, off64_t size) noexcept {
  TRIREME_NEXT(ftruncate64);
  return strikes_open_file("ftruncate", file) ? -1 : real(file, size);
}

int rename(const char* from, const char* to) noexcept {
  TRIREME_NEXT(rename);
  return strikes("rename", AT_FDCWD, from) ? -1 : real(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  TRIREME_NEXT(renameat);
  return strikes("rename", from_folder, from) ? -1 : real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  TRIREME_NEXT(renameat2);
  return strikes("rename", from_folder, from) ? -1 : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  TRIREME_NEXT(mkdir);
  return strikes("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}

int unlink(const char* path) noexcept {
  TRIREME_NEXT(unlink);
  return strikes("unlink", AT_FDCWD, path) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  TRIREME_NEXT(unlinkat);
  return strikes("unlink", folder, path) ? -1 : real(folder, path, flags);
}

int rmdir(const char* path) noexcept {
  TRIREME_NEXT(rmdir);
  return strikes("rmdir", AT_FDCWD, path) ? -1 : real(path);
}

int remove(const char* path) noexcept {
  TRIREME_NEXT(remove);
  return strikes("unlink", AT_FDCWD, path) ? -1 : real(path);
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming,readability-inconsistent-declaration-parameter-name)
