// A model's folder as transformers keeps it: config.json and one or more safetensors files.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

/// `path`, or what it points to where it is a symbolic link. Links may stay in their folder or
/// lead, as in the cache of a hub, from snapshots/REVISION to the folder blobs beside snapshots.
/// Throws Error for others.
std::filesystem::path without_link(const std::filesystem::path& path);

/// Which open file of such a folder holds which tensor.
class ForeignFolder {
 public:
  /// Opens everything and checks the index of several files both ways. Throws Error that names the
  /// file.
  explicit ForeignFolder(const std::filesystem::path& folder);
  const nlohmann::json& config() const { return config_; }
  std::string config_path() const { return (folder_ / "config.json").string(); }
  const std::map<std::string, const SafeTensorsFile*>& tensors() const { return where_; }
  /// Checks the files' checksums, which ranks share out.
  void verify(const comm::Communicator& world) const;

 private:
  nlohmann::json parse(const std::string& name) const;
  void open(const std::string& name);

  std::filesystem::path folder_;
  nlohmann::json config_;
  std::vector<std::unique_ptr<SafeTensorsFile>> files_;
  std::map<std::string, const SafeTensorsFile*> where_;
};

}  // namespace trireme::checkpoint
