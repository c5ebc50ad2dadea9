// Plain files under POSIX. Every Error names the file, the system's reason and the remedy:
// "<path>: cannot <verb>: <reason>; <remedy>".
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// What to do about `error`, a value of errno.
std::string_view mend_of(int error);

/// Throws the Error of a system call on `path` that failed with `error`, a value of errno.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view verb,
                                   int error);

/// The folder that holds `path`; "." for a plain name.
std::filesystem::path parent_of(const std::filesystem::path& path);

/// An owned file descriptor, or none (-1).
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  /// What close(2) returns, for those who must know; the descriptor is gone in any case.
  int close();

 private:
  int number_;
};

/// Holds back SIGXFSZ in this thread, so that a write past the limit on file sizes (ulimit -f)
/// fails with EFBIG, an error that can be reported, and does not kill the process. Guards may nest.
/// The writers below have one; libraries that write need one round them.
class SizeLimitGuard {
 public:
  SizeLimitGuard();
  SizeLimitGuard(const SizeLimitGuard&) = delete;
  SizeLimitGuard& operator=(const SizeLimitGuard&) = delete;
  ~SizeLimitGuard();

 private:
  sigset_t before_{};
};

/// What to do with a symbolic link in the place of a file. Where a file belongs to a set that is
/// checked as a whole, a link could lead out of it.
enum class Links : std::uint8_t { follow, refuse };

/// A regular file, open for reading. Throws Error for anything else, also a named pipe, at once.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path, Links links = Links::follow);
  /// The next bytes, from the beginning on; fewer than `bytes` only at the end of the file.
  std::size_t read(void* data, std::size_t bytes);
  /// Those from byte `offset` on; fewer only at the end of the file. Thread-safe. An Error names
  /// the byte that cannot be read.
  std::size_t read_at(void* data, std::size_t bytes, std::int64_t offset) const;
  /// When it was opened, in bytes.
  std::int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::int64_t size_ = 0, at_ = 0;  // where read() continues
};

/// A new file, written through a buffer of 1 MiB. Without finish() it remains incomplete.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);  // must not exist
  void write(const void* data, std::size_t bytes);
  /// Writes what is in the buffer and closes; does not fsync.
  void finish();

 private:
  void flush();
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::vector<char> buffer_;
};

/// A new folder, gone with everything in it at the end of its life.
class TemporaryFolder {
 public:
  /// `pattern` ends with XXXXXX, which become letters that make a new name.
  explicit TemporaryFolder(const std::filesystem::path& pattern);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The whole of a regular file of at most `limit` bytes; symbolic links are refused.
std::string read_small_file(const std::filesystem::path& path, std::int64_t limit);

/// The text of a file of at most `limit` bytes, a whole number of MiB, that a user names to every
/// rank; `kind`: "TOML". Throws AgreedError with the path and the reason.
std::string read_named_file(const std::filesystem::path& path, std::string_view kind,
                            std::int64_t limit);

/// All of `text` at the position of `file`, which `path` names, by one write(2) if possible.
void write_all(const Descriptor& file, const std::filesystem::path& path, std::string_view text);

/// Makes `text` the whole content of `path` and fsyncs it; an Error may leave a part of it.
void write_file(const std::filesystem::path& path, std::string_view text);

/// The same by a new file beside it (`path`.tmp, or `path`.1.tmp, … if that exists) and a rename:
/// at any moment `path` is the old file or the new one, and an Error leaves the old one.
void replace_file(const std::filesystem::path& path, std::string_view text);

/// For a file that a user names, who may name anything. A regular file, or the one that a symbolic
/// link leads to, is replaced as by replace_file(); what is none (a device, a pipe) is written
/// into, and so is what standard output or standard error goes to.
void write_output(const std::filesystem::path& path, std::string_view text);

/// Makes the content of a file, or the entries of a folder (created, renamed, removed), last
/// through a crash of the machine. File systems that cannot fsync a folder are let pass.
void sync_path(const std::filesystem::path& path);

/// Renames `from` to `to` and makes that last; an Error leaves both names as they were.
void rename_for_good(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace trireme
