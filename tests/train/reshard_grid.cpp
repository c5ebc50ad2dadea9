// Runs that change their layout at every start. Eight ranks; each model walks through its rows of
// the layout matrix: it loads in one layout what the one before saved, saves it at once, which must
// give every tensor and everything else that training goes on from unchanged, and then trains on,
// which must give the losses, norms and checkpoints of one rank that was never moved, bit for bit.
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/prepare.hpp"
#include "trireme/train/run.hpp"

#include "parallel/matrix.hpp"

namespace trireme::train::test {
namespace {

namespace fs = std::filesystem;
using parallel::test::LayoutCase;
using parallel::test::MatrixModel;

constexpr std::int64_t steps_between = 2;  // two moves

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Waits for all ranks without taking a core from those that work.
void quiet_barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) ::usleep(2000);
}

template <class T>
T from_rank_zero(T value) {
  MPI_Bcast(&value, sizeof value, MPI_BYTE, 0, MPI_COMM_WORLD);
  return value;
}

/// A folder that all ranks see, with a dataset of a few characters whose windows are used up every
/// few steps.
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

RunConfig config_of(const MatrixModel& model, const LayoutCase& layout, const Folder& folder,
                    const fs::path& output) {
  RunConfig config;
  config.model = model.config;
  config.data.path = folder.data().string();
  config.train.output = output.string();
  config.train.batch = parallel::test::matrix_batch;
  config.train.micro_batch = layout.micro_batch;
  config.train.evaluate_at_end = false;
  config.train.quiet = true;
  config.train.peak = "none";
  config.train.outlier = 20;  // so that the steps before have to be remembered
  config.optim.learning_rate = 3e-3;
  config.optim.warmup_steps = 5;
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.data = layout.data;
  config.parallel.sequence = layout.sequence_parallel;
  config.parallel.schedule = layout.schedule;
  config.parallel.virtual_stages = layout.virtual_stages;
  config.parallel.zero = layout.zero;
  static constexpr const char* recomputes[] = {"none", "cheap", "selective", "full"};
  config.parallel.recompute = recomputes[static_cast<int>(layout.recompute)];
  config.parallel.threads = layout.threads;
  config.zero.reshard_after_forward = layout.reshard;
  if (layout.shard > 0) config.zero.group = std::to_string(layout.shard);
  config.numerics = {.reproducible = true,
                     .virtual_data = model.virtual_data,
                     .virtual_tensor = model.virtual_tensor};
  return config;
}

/// Trains on the first ranks of the world, as many as the layout has; collective over all.
void train_on(int ranks, RunConfig config) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() < ranks ? 0 : MPI_UNDEFINED, world_rank(), &comm);
  if (comm != MPI_COMM_NULL) {
    try {
      comm::Session session(comm);
      config::Fields fields;
      config.declare(fields);
      run(session, config, fields);
    } catch (const std::exception& error) {
      fmt::print("{}\n", error.what());
      std::fflush(stdout);
      MPI_Abort(MPI_COMM_WORLD, 1);  // the others would wait for ever
    }
    MPI_Comm_free(&comm);
  }
  quiet_barrier();
}

std::vector<std::uint8_t> values_of(const checkpoint::Reader& reader,
                                    const checkpoint::Reader::Entry& tensor) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.shape.elements()) *
                                  size_of(tensor.type));
  reader.read(tensor.name, {}, Tensor(bytes.data(), tensor.type, tensor.shape));
  return bytes;
}

/// Where two checkpoints differ in what training goes on from; empty: nowhere.
std::string difference(const fs::path& one, const fs::path& other) {
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

/// What a run said of each step, but for how long it took.
std::map<std::int64_t, std::string> steps_of(const fs::path& output) {
  std::map<std::int64_t, std::string> steps;
  std::ifstream file(output / "attempts" / "0001" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json values = nlohmann::json::parse(line);
    if (values.at("type") != "step") continue;
    values.erase("seconds");
    values.erase("tokens_per_second");
    steps[values.at("step").get<std::int64_t>()] = values.dump();
  }
  return steps;
}

std::string step_folder(std::int64_t step) { return fmt::format("step-{:08}", step); }

/// The rows of the layout matrix by model, on every rank.
std::vector<std::vector<LayoutCase>> walks() {
  std::vector<int> flat;
  if (world_rank() == 0) {
    for (const parallel::test::Row& row : parallel::test::matrix_rows()) {
      flat.insert(flat.end(), row.begin(), row.end());
    }
  }
  flat.resize(from_rank_zero(flat.size()));
  MPI_Bcast(flat.data(), static_cast<int>(flat.size()), MPI_INT, 0, MPI_COMM_WORLD);
  const std::size_t factors = parallel::test::matrix_space().factors();
  std::vector<std::vector<LayoutCase>> result(parallel::test::matrix_models().size());
  for (std::size_t at = 0; at < flat.size(); at += factors) {
    const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(at);
    const parallel::test::MatrixCase each =
        parallel::test::matrix_case({begin, begin + static_cast<std::ptrdiff_t>(factors)});
    result[static_cast<std::size_t>(each.model)].push_back(each.layout);
  }
  return result;
}

/// One model through all its layouts; returns the number of moves.
int walk(const MatrixModel& model, const std::vector<LayoutCase>& layouts, const Folder& folder) {
  const auto last = static_cast<std::int64_t>(layouts.size()) * steps_between;
  const fs::path one = folder / (model.name + "-one");
  RunConfig straight = config_of(model, {.micro_batch = 4}, folder, one);
  straight.train.steps = last;
  straight.checkpoint.every = steps_between;
  straight.checkpoint.keep = last;
  train_on(1, straight);
  const auto expected = steps_of(one);
  EXPECT_EQ(std::ssize(expected), last);
  fs::path from;  // a checkpoint
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const LayoutCase& layout = layouts[i];
    const auto begin = static_cast<std::int64_t>(i) * steps_between;
    const std::string what = model.name + " at step " + std::to_string(begin) + ": " +
                             (i > 0 ? layouts[i - 1].to_string() + " -> " : "") +
                             layout.to_string();
    const fs::path copy = folder / fmt::format("{}-{}-copy", model.name, i);
    const fs::path moved = folder / fmt::format("{}-{}", model.name, i);
    if (i > 0) {
      RunConfig config = config_of(model, layout, folder, copy);
      config.train.steps = begin;  // nothing is left to do but to save
      config.checkpoint.resume = from.string();
      train_on(layout.ranks(), config);
      if (world_rank() == 0) {
        EXPECT_EQ(difference(from, copy / step_folder(begin)), "") << what;
      }
      from = copy / step_folder(begin);
    }
    RunConfig config = config_of(model, layout, folder, moved);
    config.train.steps = last;
    config.train.stop_after = steps_between;
    config.checkpoint.resume = i > 0 ? from.string() : "never";
    train_on(layout.ranks(), config);
    from = moved / step_folder(begin + steps_between);
    if (world_rank() == 0) {
      const auto found = steps_of(moved);
      EXPECT_EQ(std::ssize(found), steps_between) << what;
      for (const auto& [step, said] : found) EXPECT_EQ(said, expected.at(step)) << what;
      EXPECT_EQ(difference(from, one / from.filename()), "") << what;
    }
    // What follows a move that went wrong would only be wrong too.
    if (from_rank_zero(testing::Test::HasFailure())) return static_cast<int>(i);
  }
  return static_cast<int>(layouts.size()) - 1;
}

TEST(ReshardGrid, EveryMoveKeepsEveryBit) {
  const Folder folder;
  const auto layouts = walks();
  int moves = 0, other_world = 0;
  for (std::size_t m = 0; m < layouts.size(); ++m) {
    moves += walk(parallel::test::matrix_models()[m], layouts[m], folder);
    for (std::size_t i = 1; i < layouts[m].size(); ++i) {
      other_world += layouts[m][i].ranks() == layouts[m][i - 1].ranks() ? 0 : 1;
    }
  }
  if (world_rank() == 0) {
    fmt::print("{} moves, {} of them to another number of ranks\n", moves, other_world);
  }
  EXPECT_GE(moves, 40);
}

}  // namespace
}  // namespace trireme::train::test
