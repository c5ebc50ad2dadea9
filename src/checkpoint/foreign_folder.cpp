#include "foreign_folder.hpp"

#include <set>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::int64_t most_json_bytes = std::int64_t{64} << 20;

}  // namespace

fs::path without_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  const fs::path folder = error ? fs::path() : fs::canonical(parent_of(path), error);
  const bool cached = folder.parent_path().filename() == "snapshots" &&
                      target.parent_path() == folder.parent_path().parent_path() / "blobs";
  if (error || (target.parent_path() != folder && !cached)) {
    throw Error(
        "{}: is a symbolic link out of its folder, which is not followed; put the file itself "
        "there",
        path.string());
  }
  return target;
}

ForeignFolder::ForeignFolder(const fs::path& folder) : folder_(folder) {
  config_ = parse("config.json");
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(fs::symlink_status(index))) {
    open("model.safetensors");
    return;
  }
  const json values = parse("model.safetensors.index.json");
  const auto map = values.is_object() ? values.find("weight_map") : values.end();
  if (!values.is_object() || map == values.end() || !map->is_object()) {
    throw Error("{}: has no weight_map; restore the file", index.string());
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw Error("{}: a file name is not a string", index.string());
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    if (name.empty() || name.front() == '.' || name.find('/') != name.npos ||
        name.find('\0') != name.npos) {
      throw Error("{}: '{}' is not a plain file name; restore the file", index.string(),
                  config::one_line(name));
    }
    open(name);
  }
  for (const auto& [tensor, file] : map->items()) {
    const auto found = where_.find(tensor);
    if (found == where_.end() || found->second->path().filename() != file.get<std::string>()) {
      throw Error("{}: tensor '{}' is not in {}; restore the folder", index.string(),
                  config::one_line(tensor), config::one_line(file.get<std::string>()));
    }
  }
  for (const auto& [tensor, file] : where_) {
    if (map->contains(tensor)) continue;
    throw Error("{}: tensor '{}' of {} is not in the weight_map; restore the folder",
                index.string(), config::one_line(tensor), file->path().filename().string());
  }
}

void ForeignFolder::verify(const comm::Communicator& world) const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (static_cast<int>(i) % world.size() == world.rank()) files_[i]->verify();
  }
}

json ForeignFolder::parse(const std::string& name) const {
  const fs::path path = folder_ / name;
  return parse_json(read_small_file(without_link(path), most_json_bytes), path.string());
}

void ForeignFolder::open(const std::string& name) {
  without_link(folder_ / name);
  files_.push_back(std::make_unique<SafeTensorsFile>(folder_ / name, Links::follow));
  for (const SafeTensor& tensor : files_.back()->header().tensors) {
    if (!where_.emplace(tensor.name, files_.back().get()).second) {
      throw Error("{}: tensor '{}' is in another file too; restore the folder",
                  files_.back()->path().string(), config::one_line(tensor.name));
    }
  }
}

}  // namespace trireme::checkpoint
