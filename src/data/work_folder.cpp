#include "work_folder.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/machine.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* work_suffix = ".tmp-";
constexpr const char* owner_file = ".trireme-prepare";  // in a work folder, from its lock on
constexpr const char* plan_file = "plan.json";
constexpr std::int64_t most_plan_bytes = std::int64_t{1} << 28;
constexpr int most_tries = 100;

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

/// What the owner file holds: this host since its last boot. Other hosts may not see our locks.
std::string owner_text() { return fmt::format("{} {}\n", host_name(), boot_id()); }

/// The folder at `path`, open and locked until it is closed. No descriptor where another process
/// has the lock, the file system has no locks, or the path was removed meanwhile.
Descriptor lock_folder(const fs::path& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0 || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return Descriptor();
  struct stat locked = {}, now = {};
  const bool same = ::fstat(folder.get(), &locked) == 0 && ::lstat(path.c_str(), &now) == 0 &&
                    locked.st_dev == now.st_dev && locked.st_ino == now.st_ino;
  return same ? std::move(folder) : Descriptor();
}

/// Whether a `prepare` of this user on this host made the folder, which is open as `folder`.
bool is_ours(const Descriptor& folder, const fs::path& path) {
  struct stat status = {};
  if (::fstat(folder.get(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  try {
    return read_small_file(path / owner_file, 4096) == owner_text();
  } catch (const Error&) {
    return false;
  }
}

/// Work folders of `output` by their names.
std::vector<fs::path> work_folders(const fs::path& output) {
  const std::string prefix = output.filename().string() + work_suffix;
  constexpr std::size_t most_digits = 7;
  std::error_code code;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_of(output), code)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.starts_with(prefix) && name.size() > prefix.size() &&
                          name.size() <= prefix.size() + most_digits &&
                          name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (numbered) found.push_back(entry.path());
  }
  return found;
}

bool has_plan(const fs::path& folder, const std::string& plan) {
  try {
    return read_small_file(folder / plan_file, most_plan_bytes) == plan;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

WorkFolder::WorkFolder(const fs::path& output, const std::string& plan) : output_(output) {
  std::error_code code;
  const bool usable = fs::is_directory(output, code) && fs::is_empty(output, code);
  if (is_there(output) && !usable) {
    throw Error("--output {}: exists and is not an empty folder; remove it or choose another",
                output.string());
  }
  for (fs::path at = parent_of(output); !is_there(at); at = parent_of(at)) {
    made_parents_.push_back(at);
  }
  take_abandoned(plan);
  if (taken_over_) return;
  fs::create_directories(parent_of(output), code);
  if (code) fail(parent_of(output), code.value());
  for (int number = ::getpid(); path_.empty(); ++number) make(number, plan);
}

WorkFolder::~WorkFolder() {
  if (!committed_) discard();
}

void WorkFolder::commit() {
  std::error_code code;
  for (const fs::path& parent : made_parents_) sync_path(parent_of(parent));
  // The owner file last: without it nobody takes over or removes what a kill leaves.
  for (const char* file : {plan_file, owner_file}) {
    fs::remove(path_ / file, code);
    if (code) throw_file_error(path_ / file, "remove", code.value());
    if (file == plan_file) sync_path(path_);
  }
  rename_for_good(path_, output_);
  committed_ = true;
  for (const auto& [folder, lock] : abandoned_) fs::remove_all(folder, code);
}

void WorkFolder::fail(const fs::path& path, int error) {
  discard();
  throw_file_error(path, "create", error);
}

/// Those that no process has locked: their `prepare` was killed.
void WorkFolder::take_abandoned(const std::string& plan) {
  for (const fs::path& path : work_folders(output_)) {
    Descriptor lock = lock_folder(path);
    if (lock.get() < 0 || !is_ours(lock, path)) continue;
    if (!taken_over_ && has_plan(path, plan)) {
      taken_over_ = true;
      path_ = path;
      lock_ = std::move(lock);
      continue;
    }
    abandoned_.emplace_back(path, std::move(lock));
  }
}

/// Makes and locks the folder of that number, unless it exists or another process interferes.
/// The owner file comes after the lock: others remove no folder without it.
void WorkFolder::make(int number, const std::string& plan) {
  fs::path path = output_;
  path += work_suffix + std::to_string(number);
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST && number < ::getpid() + most_tries) return;
    fail(path, errno);
  }
  lock_ = lock_folder(path);
  if (lock_.get() < 0 && number < ::getpid() + most_tries) {
    ::rmdir(path.c_str());
    return;
  }
  path_ = path;
  if (lock_.get() < 0) return;  // a file system without locks
  try {
    write_file(path / plan_file, plan);
    write_file(path / owner_file, owner_text());
  } catch (const Error&) {  // no room for it: what a killed process leaves then stays
  }
}

void WorkFolder::discard() {
  std::error_code code;
  if (!path_.empty()) fs::remove_all(path_, code);
  for (const fs::path& parent : made_parents_) fs::remove(parent, code);  // only if empty
}

}  // namespace trireme::data
