#include "trireme/core/files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/config.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

sigset_t size_limit_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  return signals;
}

/// Makes `text` the whole content of `file`, which is empty and which `path` names.
void fill(Descriptor& file, const fs::path& path, std::string_view text) {
  write_all(file, path, text);
  if (::fsync(file.get()) != 0 || file.close() != 0) throw_file_error(path, "write", errno);
}

/// A file beside `path` that was not there, and its name.
std::pair<Descriptor, fs::path> make_temporary(const fs::path& path) {
  constexpr int most_names = 10'000;
  for (int i = 0;; ++i) {
    fs::path name = path;
    name += i == 0 ? ".tmp" : "." + std::to_string(i) + ".tmp";
    Descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() >= 0) return {std::move(file), std::move(name)};
    if (errno != EEXIST || i == most_names) throw_file_error(name, "create", errno);
  }
}

std::string whole(InputFile& file) {
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
}

/// Standard output or standard error, where that is the file of `status`; else -1.
int standard_stream(const struct stat& status) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat other {};
    if (::fstat(stream, &other) == 0 && other.st_dev == status.st_dev &&
        other.st_ino == status.st_ino) {
      return stream;
    }
  }
  return -1;
}

}  // namespace

std::string_view mend_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that disk or choose another folder";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f) or write smaller files";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may use or ask for access";
    case ENOENT:
      return "check the name or restore the file";
    case EMFILE:
      return "raise the limit on open files (ulimit -n)";
    case ENFILE:
    case ENOMEM:
      return "wait until other programs end, or use another machine";
    default:
      return "check the path and the disk";
  }
}

void throw_file_error(const fs::path& path, std::string_view verb, int error) {
  throw Error("{}: cannot {}: {}; {}", path.string(), verb, std::generic_category().message(error),
              mend_of(error));
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

int Descriptor::close() {
  const int number = std::exchange(number_, -1);
  return number < 0 ? 0 : ::close(number);
}

SizeLimitGuard::SizeLimitGuard() {
  const sigset_t signals = size_limit_signal();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SizeLimitGuard::~SizeLimitGuard() {
  if (sigismember(&before_, SIGXFSZ) == 1) return;  // an outer guard sees to it
  // One that is pending would kill the process as soon as it is let through.
  const sigset_t signals = size_limit_signal();
  const timespec at_once{};
  while (sigtimedwait(&signals, nullptr, &at_once) == SIGXFSZ) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

// O_NONBLOCK: a named pipe must not hold us up before it is recognized.
InputFile::InputFile(const fs::path& path, Links links)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC |
                                           (links == Links::refuse ? O_NOFOLLOW : 0))) {
  if (descriptor_.get() < 0) {
    const int error = errno;
    std::error_code ignored;
    if (error == ELOOP && links == Links::refuse && fs::is_symlink(path, ignored)) {
      throw Error("{}: is a symbolic link, which is not followed; put the file itself there",
                  path.string());
    }
    throw_file_error(path, "open", error);
  }
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) throw_file_error(path, "open", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error("{}: is not a regular file; put a file there or name another", path.string());
  }
  size_ = status.st_size;
}

std::size_t InputFile::read(void* data, std::size_t bytes) {
  const std::size_t got = read_at(data, bytes, at_);
  at_ += static_cast<std::int64_t>(got);
  return got;
}

std::size_t InputFile::read_at(void* data, std::size_t bytes, std::int64_t offset) const {
  std::size_t done = 0;
  while (done < bytes) {
    const std::int64_t at = offset + static_cast<std::int64_t>(done);
    const ssize_t got =
        ::pread(descriptor_.get(), static_cast<char*>(data) + done, bytes - done, at);
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_file_error(path_, fmt::format("read at byte {}", at), errno);
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

OutputFile::OutputFile(const fs::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (descriptor_.get() < 0) throw_file_error(path, "create", errno);
  buffer_.reserve(buffer_bytes);
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
  write_all(descriptor_, path_, {buffer_.data(), buffer_.size()});
  buffer_.clear();
}

void OutputFile::finish() {
  flush();
  if (descriptor_.close() != 0) throw_file_error(path_, "write", errno);
}

TemporaryFolder::TemporaryFolder(const fs::path& pattern) {
  std::string name = pattern.string();
  if (::mkdtemp(name.data()) == nullptr) throw_file_error(pattern, "create", errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string read_small_file(const fs::path& path, std::int64_t limit) {
  InputFile file(path, Links::refuse);
  if (file.size() > limit) {
    throw Error("{}: {} bytes, expected at most {}; restore the file", path.string(), file.size(),
                limit);
  }
  return whole(file);
}

std::string read_named_file(const fs::path& path, std::string_view kind, std::int64_t limit) {
  const std::string shown = config::one_line(path.string());
  std::error_code error;
  if (fs::is_directory(path, error))
    throw AgreedError("{}: is a folder; name a {} file", shown, kind);
  if (!fs::exists(path, error)) {
    throw AgreedError("{}: cannot be read: {}; name an existing {} file", shown,
                      std::generic_category().message(error ? error.value() : ENOENT), kind);
  }
  InputFile file(path);
  if (file.size() > limit) {
    throw AgreedError("{}: is larger than {} MiB; is it the right file?", shown, limit >> 20);
  }
  return whole(file);
}

void write_all(const Descriptor& file, const fs::path& path, std::string_view text) {
  const SizeLimitGuard guard;
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_file_error(path, "write", errno);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void write_file(const fs::path& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) throw_file_error(path, "create", errno);
  fill(file, path, text);
}

void replace_file(const fs::path& path, std::string_view text) {
  auto [file, temporary] = make_temporary(path);
  try {
    fill(file, temporary, text);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_file_error(path, "replace", errno);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_path(parent_of(path));
}

void write_output(const fs::path& path, std::string_view text) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    std::error_code ignored;
    // A link that leads nowhere makes the file that it names.
    return fs::is_symlink(path, ignored) ? write_file(path, text) : replace_file(path, text);
  }
  if (const int stream = standard_stream(status); stream >= 0) {
    std::fflush(stream == STDOUT_FILENO ? stdout : stderr);
    // A descriptor of its own: another one of the same open file, at the same position.
    const Descriptor file(::fcntl(stream, F_DUPFD_CLOEXEC, 0));
    if (file.get() < 0) throw_file_error(path, "open", errno);
    return write_all(file, path, text);
  }
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (S_ISREG(status.st_mode) && !error) return replace_file(real, text);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) throw_file_error(path, "open", errno);
  write_all(file, path, text);
  if (file.close() != 0) throw_file_error(path, "write", errno);
}

void sync_path(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_file_error(path, "open", errno);
  if (::fsync(file.get()) == 0) return;
  const int error = errno;
  std::error_code ignored;
  // EINVAL: a file system that has no such thing as an fsync of a folder.
  if (error != EINVAL || !fs::is_directory(path, ignored)) throw_file_error(path, "write", error);
}

void rename_for_good(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_file_error(to, "create", errno);
  try {
    sync_path(parent_of(to));
  } catch (const Error&) {
    ::rename(to.c_str(), from.c_str());
    throw;
  }
}

}  // namespace trireme
