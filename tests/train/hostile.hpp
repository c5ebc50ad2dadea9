// A corpus of malicious files, and runs of the program on each.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "trireme/data/hash.hpp"

namespace trireme::hostile {

namespace fs = std::filesystem;
using nlohmann::json;

/// A run of trireme that must be refused with one line that contains `message`.
struct Case {
  std::string name;
  std::string message;
  std::vector<std::string> arguments;
};

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write(const fs::path& path, const std::string& text) {
  fs::remove_all(path);
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no '" + from + "' to replace");
  return text.replace(at, from.size(), to);
}

/// Other file types in the place of a file, and how to create them.
inline const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>>& others() {
  static const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> list = {
      {"pipe", [](const fs::path& path) { ::mkfifo(path.c_str(), 0600); }},
      {"folder", [](const fs::path& path) { fs::create_directory(path); }},
      {"device", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); }},
      {"link", [](const fs::path& path) { fs::create_symlink("/etc/hostname", path); }}};
  return list;
}

/// Creates cases below `root` from the sound dataset base/data, run folder base/run and
/// transformers folder base/theirs.
class Corpus {
 public:
  Corpus(fs::path base, fs::path root) : base_(std::move(base)), root_(std::move(root)) {}
  const std::vector<Case>& cases() const { return cases_; }
  const fs::path& base() const { return base_; }

  /// A copy of the dataset whose folder `edit` changes.
  void dataset(const std::string& name, const std::string& message,
               const std::function<void(const fs::path&)>& edit) {
    const fs::path folder = copy("data", "dataset-" + name);
    edit(folder);
    cases_.push_back({"dataset " + name, message, {"inspect", folder, "--verify"}});
  }
  /// The dataset with its manifest changed as text.
  void manifest(const std::string& name, const std::string& message, const std::string& from,
                const std::string& to) {
    dataset("manifest-" + name, message, [&](const fs::path& folder) {
      std::string text = read(folder / "dataset.json");
      const std::size_t seal = text.find("  \"manifest_xxh3\"");
      text.erase(seal, text.find('\n', seal) + 1 - seal);  // like older manifests
      write(folder / "dataset.json", replaced(text, from, to));
    });
  }
  /// A copy of the checkpoint whose step folder `edit` changes.
  void checkpoint(const std::string& name, const std::string& message,
                  const std::function<void(const fs::path&)>& edit) {
    const fs::path folder = copy("run/step-00000002", "checkpoint-" + name);
    edit(folder);
    cases_.push_back({"checkpoint " + name, message, {"inspect", folder, "--verify"}});
  }
  /// The checkpoint with its manifest changed as text and sealed again.
  void sealed(const std::string& name, const std::string& message,
              const std::function<std::string(std::string)>& edit) {
    checkpoint("manifest-" + name, message, [&](const fs::path& folder) {
      const std::string text = read(folder / "manifest.json");
      const std::string rest = edit(text.substr(text.find('\n') + 1));
      data::Xxh3 hash;
      hash.update(rest.data(), rest.size());
      write(folder / "manifest.json", "{\"manifest_xxh3\": \"" + hash.hex() + "\",\n" + rest);
    });
  }
  /// Evaluates the checkpoint added last instead of inspecting it.
  void evaluate() {
    Case& last = cases_.back();
    last.arguments = {"evaluate", "--checkpoint", last.arguments[1], "--data.path",
                      (base_ / "data").string()};
  }
  /// A copy of the transformers folder.
  void foreign(const std::string& name, const std::string& message,
               const std::function<void(const fs::path&)>& edit) {
    const fs::path folder = copy("theirs", "theirs-" + name);
    edit(folder);
    cases_.push_back({"transformers " + name,
                      message,
                      {"import", "--input", folder, "--output", root_ / ("imported-" + name)}});
  }
  /// A configuration file.
  void toml(const std::string& name, const std::string& message,
            const std::function<void(const fs::path&)>& make) {
    const fs::path file = root_ / (name + ".toml");
    make(file);
    cases_.push_back({"configuration " + name, message, {"train", "--config", file, "--dry-run"}});
  }
  void toml(const std::string& name, const std::string& message, const std::string& text) {
    toml(name, message, [&](const fs::path& file) { write(file, text); });
  }
  /// A schedule file.
  void schedule(const std::string& name, const std::string& message,
                const std::function<void(const fs::path&)>& make) {
    const fs::path file = root_ / (name + ".csv");
    make(file);
    train("schedule " + name, message, {"--parallel.schedule", "file:" + file.string()});
  }
  void schedule(const std::string& name, const std::string& message, const std::string& text) {
    schedule(name, message, [&](const fs::path& file) { write(file, text); });
  }
  /// Training with further arguments.
  void train(const std::string& name, const std::string& message,
             const std::vector<std::string>& arguments) {
    Case added{name,
               message,
               {"train",
                "--data.path",
                base_ / "data",
                "--train.output",
                root_ / "run",
                "--model.layers",
                "1",
                "--model.width",
                "16",
                "--model.heads",
                "2",
                "--model.sequence",
                "16",
                "--train.batch",
                "4",
                "--train.steps",
                "1",
                "--train.peak",
                "none",
                "--train.quiet"}};
    added.arguments.insert(added.arguments.end(), arguments.begin(), arguments.end());
    cases_.push_back(std::move(added));
  }
  /// Any other run.
  void run(const std::string& name, const std::string& message,
           std::vector<std::string> arguments) {
    cases_.push_back({name, message, std::move(arguments)});
  }
  /// A new path for a file.
  fs::path path(const std::string& name) const { return root_ / name; }

 private:
  fs::path copy(const std::string& from, const std::string& to) const {
    fs::copy(base_ / from, root_ / to, fs::copy_options::recursive);
    return root_ / to;
  }

  fs::path base_, root_;
  std::vector<Case> cases_;
};

}  // namespace trireme::hostile
