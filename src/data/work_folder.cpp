#include "work_folder.hpp"

#include <system_error>

#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

}  // namespace

WorkFolder::WorkFolder(const fs::path& output) : output_(output) {
  std::error_code code;
  const bool usable = fs::is_directory(output, code) && fs::is_empty(output, code);
  if (is_there(output) && !usable) {
    throw Error("--output {}: exists and is not an empty folder; remove it or choose another",
                output.string());
  }
  for (fs::path at = parent_of(output); !is_there(at); at = parent_of(at)) {
    made_parents_.push_back(at);
  }
  fs::path path = output;
  path += fmt::format(".tmp-{}", ::getpid());
  try {
    fs::create_directories(parent_of(output));
    fs::remove_all(path);  // left by a process of this number that was killed
    fs::create_directory(path);
  } catch (const fs::filesystem_error& error) {
    discard();
    throw_file_error(path, "create", error.code().value());
  }
  path_ = path;
}

WorkFolder::~WorkFolder() {
  if (!committed_) discard();
}

void WorkFolder::commit() {
  sync_path(path_);
  for (const fs::path& parent : made_parents_) sync_path(parent_of(parent));
  rename_for_good(path_, output_);
  committed_ = true;
}

void WorkFolder::discard() {
  std::error_code code;
  if (!path_.empty()) fs::remove_all(path_, code);
  for (const fs::path& parent : made_parents_) fs::remove(parent, code);  // only if empty
}

}  // namespace trireme::data
