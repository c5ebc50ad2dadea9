// Reads the reference files of tests/reference: one JSON index and raw little-endian tensors.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme::testing_support {

/// One case of the reference files: "gpt2", "llama", "llama3_rope" or "packed". Tensors are named
/// "parameters/<name>", "gradients/<name>", "ids", "targets", "weights", "documents" (of "packed")
/// and "logits". Errors throw std::runtime_error.
class Reference {
 public:
  template <class T>
  struct Array {
    std::vector<T> values;
    std::vector<std::int64_t> shape;
  };

  /// `folder` is tests/reference of the source tree.
  Reference(const std::filesystem::path& folder, const std::string& name) : folder_(folder) {
    std::ifstream file(folder / "reference.json");
    if (!file) throw std::runtime_error("cannot open " + (folder / "reference.json").string());
    case_ = nlohmann::json::parse(file).at("cases").at(name);
  }

  /// The keys of section "model" of a run's configuration.
  const nlohmann::json& config() const { return case_.at("config"); }
  std::int64_t batch() const { return case_.at("batch"); }
  double loss() const { return case_.at("loss"); }
  /// Settings, "losses" and "gradient_norms" (before each update) and "loss_after" (the last).
  const nlohmann::json& adamw() const { return case_.at("adamw"); }

  bool has(const std::string& name) const { return case_.at("tensors").contains(name); }
  /// Names of the tensors that start with `prefix`, with the prefix removed.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> out;
    for (const auto& [name, entry] : case_.at("tensors").items()) {
      if (name.starts_with(prefix)) out.push_back(name.substr(prefix.size()));
    }
    return out;
  }

  /// Float types convert into each other; integers are std::int32_t.
  template <class T>
  Array<T> tensor(const std::string& name) const {
    const nlohmann::json& entry = case_.at("tensors").at(name);
    Array<T> out;
    out.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    const auto dtype = entry.at("dtype").get<std::string>();
    if constexpr (std::is_floating_point_v<T>) {
      if (dtype == "f32") out.values = read<float, T>(entry, out.shape);
      if (dtype == "f64") out.values = read<double, T>(entry, out.shape);
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      if (dtype == "i32") out.values = read<std::int32_t, T>(entry, out.shape);
    }
    if (out.values.empty())
      throw std::runtime_error(name + " holds " + dtype + ": ask for another type");
    return out;
  }

 private:
  template <class Stored, class T>
  std::vector<T> read(const nlohmann::json& entry, const std::vector<std::int64_t>& shape) const {
    static_assert(std::endian::native == std::endian::little,
                  "the reference files are little-endian");
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    std::vector<Stored> stored(count);
    const std::filesystem::path path = folder_ / entry.at("file").get<std::string>();
    std::ifstream file(path, std::ios::binary);
    file.seekg(entry.at("offset").get<std::int64_t>());
    std::vector<char> bytes(count * sizeof(Stored));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file) throw std::runtime_error("cannot read " + path.string());
    std::memcpy(stored.data(), bytes.data(), bytes.size());
    return std::vector<T>(stored.begin(), stored.end());
  }

  std::filesystem::path folder_;
  nlohmann::json case_;
};

}  // namespace trireme::testing_support
