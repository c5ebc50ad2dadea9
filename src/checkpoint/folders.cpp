#include <algorithm>
#include <string_view>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/core/files.hpp"

#include "files.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

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
