// Training runs inside a test, in a folder that all ranks see, and their output.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/prepare.hpp"
#include "trireme/data_parallel/run.hpp"

#include "support/batches.hpp"

namespace trireme::train::test {

namespace fs = std::filesystem;

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Waits for all ranks without using a core.
inline void quiet_barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) ::usleep(2000);
}

inline int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

template <class T>
T from_rank_zero(T value) {
  MPI_Bcast(&value, sizeof value, MPI_BYTE, 0, MPI_COMM_WORLD);
  return value;
}

/// A folder that all ranks see, with a tiny dataset whose windows are used up every few steps.
class Folder {
 public:
  Folder() : path_(fs::path(testing::TempDir()) / fmt::format("trireme_grid_{}", number())) {
    if (world_rank() == 0) {
      fs::create_directories(path_);
      {
        std::ofstream text(path_ / "text");
        for (int i = 0; i < 700; ++i) text << i * i % 977 << (i % 9 == 0 ? '\n' : ' ');
      }
      data::prepare({.inputs = {path_ / "text"}, .output = data(), .tokenizer = "characters"}, {});
    }
    quiet_barrier();
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    quiet_barrier();
    std::error_code ignored;
    if (world_rank() == 0) fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  fs::path data() const { return path_ / "data"; }

 private:
  static int number() { return from_rank_zero(static_cast<int>(::getpid())); }
  fs::path path_;
};

/// 16 sequences a step in micro-batches of 2, by all-reduce; reproducible, so that the layout does
/// not matter.
inline RunConfig small_config(const Folder& folder, const std::string& name) {
  RunConfig config;
  config.model = testing_support::odd_model(false);
  config.model.vocabulary = 0;  // the dataset's
  config.model.dropout = 0.1;
  config.data.path = folder.data().string();
  config.train.output = (folder / name).string();
  config.train.batch = 16;
  config.train.micro_batch = 2;
  config.train.steps = 8;
  config.train.evaluate_at_end = false;
  config.train.quiet = true;
  config.train.peak = "none";
  config.optim.learning_rate = 3e-3;
  config.parallel.threads = 1;
  config.numerics = {.reproducible = true, .virtual_data = 4, .virtual_tensor = 4};
  return config;
}

/// summary.json of a run's last attempt.
inline nlohmann::json summary_of(const fs::path& run, const std::string& attempt = "0001") {
  std::ifstream file(run / "attempts" / attempt / "summary.json");
  return nlohmann::json::parse(file);
}

/// Trains on the first ranks of the world, as many as the layout has; collective over all.
inline void train_on(int ranks, RunConfig config, const DeviceSource& devices = cuda_devices()) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() < ranks ? 0 : MPI_UNDEFINED, world_rank(), &comm);
  if (comm != MPI_COMM_NULL) {
    try {
      comm::Session session(comm);
      config::Fields fields;
      config.declare(fields);
      data_parallel::run(session, config, fields, devices);
    } catch (const std::exception& error) {
      fmt::print("{}\n", error.what());
      std::fflush(stdout);
      MPI_Abort(MPI_COMM_WORLD, 1);  // the others would wait forever
    }
    MPI_Comm_free(&comm);
  }
  quiet_barrier();
}

inline std::vector<std::uint8_t> values_of(const checkpoint::Reader& reader,
                                           const checkpoint::Reader::Entry& tensor) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.shape.elements()) *
                                  size_of(tensor.type));
  reader.read(tensor.name, {}, Tensor(bytes.data(), tensor.type, tensor.shape));
  return bytes;
}

/// Where the training states of two checkpoints differ; empty: nowhere.
inline std::string difference(const fs::path& one, const fs::path& other) {
  const checkpoint::Reader a(one), b(other);
  const checkpoint::State &sa = a.state(), &sb = b.state();
  if (sa.step != sb.step) return fmt::format("step {} and {}", sa.step, sb.step);
  if (sa.samples != sb.samples) return fmt::format("samples {} and {}", sa.samples, sb.samples);
  if (sa.seed != sb.seed) return "seed";
  if (sa.extra != sb.extra) return sa.extra.dump() + " and " + sb.extra.dump();
  if (a.tensors().size() != b.tensors().size()) return "number of tensors";
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const checkpoint::Reader::Entry &ta = a.tensors()[i], &tb = b.tensors()[i];
    if (ta.name != tb.name || ta.shape != tb.shape || ta.type != tb.type) return ta.name;
    if (values_of(a, ta) != values_of(b, tb)) return "values of " + ta.name;
  }
  return {};
}

/// What a run recorded of each step, but for how long it took.
inline std::map<std::int64_t, std::string> steps_of(const fs::path& output) {
  std::map<std::int64_t, std::string> steps;
  std::ifstream file(output / "attempts" / "0001" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json values = nlohmann::json::parse(line);
    if (values.at("type") != "step") continue;
    values.erase("seconds");
    values.erase("tokens_per_second");
    values.erase("seal");
    steps[values.at("step").get<std::int64_t>()] = values.dump();
  }
  return steps;
}

inline std::string step_folder(std::int64_t step) { return fmt::format("step-{:08}", step); }

}  // namespace trireme::train::test
