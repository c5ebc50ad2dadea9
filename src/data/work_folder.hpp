// Where prepare works until its dataset is whole.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/files.hpp"

namespace trireme::data {

/// `output`.tmp-<pid>, or the next number that is free, locked: removed with all that it holds, and
/// with the parents that were made for it, unless committed. Where a process was killed, a folder
/// for the same `plan` is taken over with what is done in it; others of that output are removed
/// once this one is committed.
class WorkFolder {
 public:
  /// Throws Error when `output` exists and is not an empty folder, or when nothing can be made
  /// there.
  WorkFolder(const std::filesystem::path& output, const std::string& plan);
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder();
  const std::filesystem::path& path() const { return path_; }
  /// Whether another process had begun it.
  bool taken_over() const { return taken_over_; }
  /// Fsyncs the folder and renames it to `output`; its files were fsynced by those who wrote them.
  void commit();

 private:
  [[noreturn]] void fail(const std::filesystem::path& path, int error);
  void take_abandoned(const std::string& plan);
  void make(int number, const std::string& plan);
  void discard();

  std::filesystem::path output_, path_;
  Descriptor lock_;
  std::vector<std::pair<std::filesystem::path, Descriptor>> abandoned_;  // others, and their locks
  std::vector<std::filesystem::path> made_parents_;                      // innermost first
  bool taken_over_ = false, committed_ = false;
};

}  // namespace trireme::data
