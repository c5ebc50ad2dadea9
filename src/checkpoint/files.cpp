#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/core/error.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

void read_at(const InputFile& file, void* data, std::size_t bytes, std::int64_t offset) {
  const std::size_t got = file.read_at(data, bytes, offset);
  if (got == bytes) return;
  throw Error("{}: ends at byte {}, before its data", file.path().string(),
              offset + static_cast<std::int64_t>(got));
}

void expect_size(const InputFile& file, std::int64_t bytes) {
  if (file.size() == bytes) return;
  throw Error("{}: has {} bytes, the manifest says {}; the file is damaged, use another checkpoint",
              file.path().string(), file.size(), bytes);
}

void expect_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) throw_file_error(path, "open", error ? error.value() : ENOENT);
  if (fs::is_symlink(status)) {
    throw Error("{}: is a symbolic link, which is not followed; put the folder itself there",
                path.string());
  }
  if (!fs::is_directory(status)) throw_file_error(path, "open", ENOTDIR);
}

void write_at(const Descriptor& file, const fs::path& path, const void* data, std::size_t bytes,
              std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(file.get(), from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_file_error(path, "write", errno);
    from += put;
    bytes -= static_cast<std::size_t>(put);
    offset += put;
  }
}

namespace {

bool exchange(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

/// Removes a folder that `final` has replaced, if there is one. One that is no whole checkpoint is
/// kept under the first free name of final.damaged, final.damaged-2, …: a user may want to mend it.
/// What a kill or an error leaves, prune removes.
void discard(const fs::path& replaced, const fs::path& final) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(replaced, error))) return;
  try {
    Reader(replaced).verify();
    fs::remove_all(replaced, error);
  } catch (const std::exception&) {
    fs::path aside = final;
    aside += ".damaged";
    for (int i = 2; fs::exists(fs::symlink_status(aside, error)); ++i) {
      aside.replace_extension(fmt::format("damaged-{}", i));
    }
    fs::rename(replaced, aside, error);
  }
}

/// For file systems that cannot exchange names.
void replace_in_two_steps(const fs::path& temporary, const fs::path& final) {
  fs::path old = final;
  old += ".old";
  std::error_code error;
  const bool replaces = fs::exists(fs::symlink_status(final, error));
  error.clear();
  if (replaces) fs::remove_all(old, error);
  if (error) throw_file_error(old, "remove", error.value());
  if (replaces && ::rename(final.c_str(), old.c_str()) != 0) {
    throw_file_error(final, "rename", errno);
  }
  try {
    rename_for_good(temporary, final);
  } catch (const Error&) {
    if (replaces) ::rename(old.c_str(), final.c_str());
    throw;
  }
  discard(old, final);
}

/// A name below a root that `save` may have made.
struct Folder {
  fs::path path;
  std::int64_t step = 0;
  std::string suffix;  // "", ".tmp" or ".old"
};

/// All of them, newest first; "" before ".old" of the same step. None where there is no folder
/// `root`.
std::vector<Folder> folders_below(const fs::path& root) {
  std::vector<Folder> folders;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    constexpr std::string_view prefix = "step-";
    if (!name.starts_with(prefix)) continue;
    const std::size_t end_of_digits =
        std::min(name.find_first_not_of("0123456789", prefix.size()), name.size());
    const std::string digits = name.substr(prefix.size(), end_of_digits - prefix.size());
    const std::string suffix = name.substr(end_of_digits);
    if (digits.size() < 8 || digits.size() > 18) continue;
    if (suffix.empty() || suffix == ".tmp" || suffix == ".old") {
      folders.push_back({entry->path(), std::stoll(digits), suffix});
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw_file_error(root, "list", error.value());
  }
  std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
    return a.step != b.step ? a.step > b.step : a.suffix < b.suffix;
  });
  return folders;
}

}  // namespace

void commit(const fs::path& temporary, const fs::path& final) {
  if (!exchange(temporary, final)) return replace_in_two_steps(temporary, final);
  try {
    sync_path(parent_of(final));
  } catch (const Error&) {
    exchange(temporary, final);
    throw;
  }
  discard(temporary, final);  // now the replaced folder
}

std::string step_name(std::int64_t step) {
  TRIREME_ASSERT(step >= 0, "step {}", step);
  return fmt::format("step-{:08}", step);
}

std::optional<fs::path> newest(const fs::path& root, std::vector<std::string>* passed_over,
                               std::int64_t last) {
  for (const Folder& folder : folders_below(root)) {
    if (folder.suffix == ".tmp" || folder.step > last) continue;
    try {
      const Reader reader(folder.path);
      if (reader.state().step == folder.step) return folder.path;
      throw Error("{}: its manifest is of step {}", folder.path.string(), reader.state().step);
    } catch (const Error& error) {
      if (passed_over != nullptr) passed_over->emplace_back(error.what());
    }
  }
  return std::nullopt;
}

void prune(const fs::path& root, std::int64_t keep, std::int64_t last) {
  TRIREME_ASSERT(keep >= 1, "{} checkpoints to keep", keep);
  std::int64_t kept = 0;
  std::int64_t last_step = -1;  // of the last whole folder
  std::vector<fs::path> surplus;
  for (const Folder& folder : folders_below(root)) {
    if (folder.step > last && folder.suffix != ".tmp") continue;
    bool whole = false;
    if (folder.suffix != ".tmp") {
      try {
        whole = Reader(folder.path).state().step == folder.step;
      } catch (const Error&) {  // broken: does not count
      }
    }
    if (folder.suffix == ".tmp" || kept == keep || (whole && folder.step == last_step)) {
      surplus.push_back(folder.path);
    } else if (whole) {
      ++kept;
      last_step = folder.step;
    }
  }
  // What is being removed has no final name: killed half-way, it is a leftover of the next time.
  std::stable_partition(surplus.begin(), surplus.end(),
                        [](const fs::path& path) { return path.extension() == ".tmp"; });
  for (const fs::path& path : surplus) {
    fs::path doomed = path;
    doomed.replace_extension(".tmp");
    std::error_code error;
    if (doomed != path) fs::rename(path, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error) throw_file_error(path, "remove", error.value());
  }
}

}  // namespace trireme::checkpoint
