// The folder in the making beside its final place.
#pragma once

#include <filesystem>
#include <vector>

namespace trireme::data {

/// `output`.tmp-<pid>: removed with all that it holds, and with the parents that were made for it,
/// unless committed.
class WorkFolder {
 public:
  /// Throws Error when `output` exists and is not an empty folder, or when nothing can be made
  /// there.
  explicit WorkFolder(const std::filesystem::path& output);
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder();
  const std::filesystem::path& path() const { return path_; }
  /// Fsyncs the folder and renames it to `output`; its files were fsynced by those who wrote them.
  void commit();

 private:
  void discard();
  std::filesystem::path output_, path_;
  std::vector<std::filesystem::path> made_parents_;  // innermost first
  bool committed_ = false;
};

}  // namespace trireme::data
