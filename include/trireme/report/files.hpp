// Files that must be whole or absent: written, fsynced, and where wanted renamed into place.
#pragma once

#include <csignal>
#include <filesystem>
#include <string_view>

namespace trireme::report {

/// Holds back SIGXFSZ in this thread, so that a write past the file size limit (ulimit -f) fails
/// with EFBIG, an error that can be told, and does not kill the process.
class SizeLimitGuard {
 public:
  SizeLimitGuard();
  SizeLimitGuard(const SizeLimitGuard&) = delete;
  SizeLimitGuard& operator=(const SizeLimitGuard&) = delete;
  ~SizeLimitGuard();

 private:
  sigset_t before_;
};

/// An owned file descriptor, or none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  void reset(int number) {
    close();
    number_ = number;
  }
  /// What close(2) returns, for those who must know; the descriptor is gone in any case.
  int close();

 private:
  int number_;
};

/// Writes `text` as the whole content of `path` and fsyncs it. Throws Error with the path and the
/// system's reason; what was written until then may remain.
void write_file(const std::filesystem::path& path, std::string_view text);

/// The same by way of `path`.tmp and a rename: at any moment `path` is the old file or the new one.
void replace_file(const std::filesystem::path& path, std::string_view text);

/// Makes entries of `folder` (created, renamed, removed) last through a crash of the machine.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme::report
