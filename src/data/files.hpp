// Plain files under POSIX, with errors that name the file and the system's reason.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Throws Error "<path>: cannot <verb>: <reason>; <mend>", where the mend follows from the reason.
[[noreturn]] void fail(const std::filesystem::path& path, std::string_view verb, int error);

/// What to do about `error`, in words.
std::string_view mend_of(int error);

/// A file read from its beginning.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  /// Fills `data` as far as the file reaches; less than `bytes` only at its end.
  std::size_t read(void* data, std::size_t bytes);
  std::int64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::int64_t size_ = 0;
};

/// A new file, written through a buffer of 1 MiB.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);  // must not exist
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(const void* data, std::size_t bytes);
  /// Writes what is in the buffer and closes; fsyncs first when asked to.
  void finish(bool sync);

 private:
  void flush();
  std::filesystem::path path_;
  int descriptor_;
  std::vector<char> buffer_;
};

/// The whole of a small regular file; refuses links and files above `limit` bytes.
std::string read_small_file(const std::filesystem::path& path, std::int64_t limit);

/// Makes the content of a file, or the entries of a folder, last through a crash of the machine.
void sync_path(const std::filesystem::path& path);

/// Turns the signal of a write past `ulimit -f` in this thread into the error EFBIG.
class FileSizeSignalGuard {
 public:
  FileSizeSignalGuard();
  FileSizeSignalGuard(const FileSizeSignalGuard&) = delete;
  FileSizeSignalGuard& operator=(const FileSizeSignalGuard&) = delete;
  ~FileSizeSignalGuard();

 private:
  sigset_t before_{};
};

}  // namespace trireme::data
