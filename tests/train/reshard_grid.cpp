// Runs that change their layout at every start, on eight ranks. Each model steps through its rows
// of the layout matrix: it loads the previous layout's checkpoint, saves it at once, which must
// leave the complete training state unchanged, and trains on, which must match an uninterrupted run
// on one rank bit for bit.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "parallel/matrix.hpp"
#include "train/runs.hpp"

namespace trireme::train::test {
namespace {

using parallel::test::LayoutCase;
using parallel::test::MatrixModel;

constexpr std::int64_t steps_between = 2;  // two layouts

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
  config.train.outlier = 20;  // so that the history is saved
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

/// Runs one model through all its layouts; returns the number of moves.
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
      config.train.steps = begin;  // no step left: only saves
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
      for (const auto& [step, line] : found) EXPECT_EQ(line, expected.at(step)) << what;
      EXPECT_EQ(difference(from, one / from.filename()), "") << what;
    }
    // After a failed move, later ones would fail too.
    if (from_rank_zero(testing::Test::HasFailure())) return static_cast<int>(i);
  }
  return static_cast<int>(layouts.size()) - 1;
}

TEST(ReshardGrid, EveryMoveIsBitForBit) {
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
