// Runs of the matrix on the ranks of the world: one rank's results, and each case beside them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "matrix.hpp"

namespace trireme::parallel::test {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// Settings of the matrix's models.
struct MatrixRuns {
  bool reproducible = true;
  int steps = 10;
  MakeTestDevice make_device;  // absent: the host
  DType compute = DType::f32;
  bool offload = false;
  double clip = 1;
  bool graphs = false;
};

inline RunSettings settings_of(int model, const MatrixRuns& runs) {
  const MatrixModel& chosen = matrix_models()[static_cast<std::size_t>(model)];
  return {.steps = runs.steps,
          .global_batch = matrix_batch,
          .reproducible = runs.reproducible,
          .virtual_tensor = chosen.virtual_tensor,
          .virtual_data = chosen.virtual_data,
          .make_device = runs.make_device,
          .compute = runs.compute,
          .offload = runs.offload,
          .clip = runs.clip,
          .graphs = runs.graphs};
}

template <class T>
void broadcast(std::vector<T>& values, int root) {
  auto size = static_cast<std::int64_t>(values.size());
  MPI_Bcast(&size, 1, MPI_INT64_T, root, MPI_COMM_WORLD);
  values.resize(static_cast<std::size_t>(size));
  if constexpr (std::is_arithmetic_v<T>) {
    MPI_Bcast(values.data(), static_cast<int>(size * static_cast<std::int64_t>(sizeof(T))),
              MPI_BYTE, root, MPI_COMM_WORLD);
  } else {
    for (T& each : values) broadcast(each, root);
  }
}
inline void broadcast(std::vector<std::string>& values, int root) {
  std::vector<std::vector<char>> texts;
  for (const std::string& value : values) texts.emplace_back(value.begin(), value.end());
  broadcast(texts, root);
  values.clear();
  for (const auto& text : texts) values.emplace_back(text.begin(), text.end());
}

/// One rank's results, by model.
inline std::vector<RunResult> references(const MatrixRuns& runs) {
  const int models = static_cast<int>(matrix_models().size());
  std::vector<RunResult> results(static_cast<std::size_t>(models));
  for (int model = 0; model < models; ++model) {
    if (model % world_size() != world_rank()) continue;
    results[static_cast<std::size_t>(model)] =
        run_layout(matrix_models()[static_cast<std::size_t>(model)].config, {.micro_batch = 4},
                   settings_of(model, runs), MPI_COMM_SELF);
  }
  for (int model = 0; model < models; ++model) {
    RunResult& result = results[static_cast<std::size_t>(model)];
    const int root = model % world_size();
    EXPECT_EQ(result.fault, "");
    broadcast(result.losses, root);
    broadcast(result.norms, root);
    broadcast(result.hashes, root);
    broadcast(result.names, root);
    broadcast(result.tensors, root);
    broadcast(result.gradients, root);
    broadcast(result.evaluation, root);
  }
  return results;
}

/// The covering array, on every rank, computed on the first. TRIREME_LAYOUT_COUNT: only so many of
/// its first rows, which cover more pairs than later ones.
inline std::vector<Row> committed_rows() {
  std::vector<Row> rows;
  if (world_rank() == 0) rows = matrix_rows();
  if (const char* count = std::getenv("TRIREME_LAYOUT_COUNT")) {
    rows.resize(std::min(rows.size(), static_cast<std::size_t>(std::atoll(count))));
  }
  broadcast(rows, 0);
  return rows;
}

/// Ten rows of a seed that is printed: TRIREME_LAYOUT_SEED, else the time.
inline std::vector<Row> drawn_rows() {
  std::int64_t seed = std::time(nullptr);
  if (const char* given = std::getenv("TRIREME_LAYOUT_SEED")) seed = std::atoll(given);
  MPI_Bcast(&seed, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  if (world_rank() == 0) fmt::print("ten more layouts: TRIREME_LAYOUT_SEED={}\n", seed);
  return random_rows(static_cast<std::uint64_t>(seed), 10);
}

/// Runs `compare` on the result of each case, on all its ranks. An exception ends the launch,
/// because the case's other ranks would wait forever.
template <class Compare>
void run_cases(const std::vector<MatrixCase>& cases, const MatrixRuns& runs,
               const Compare& compare) {
  for (int ranks = world_size(); ranks >= 1; ranks /= 2) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank() / ranks, world_rank(), &comm);
    int number = 0;
    for (const MatrixCase& each : cases) {
      if (each.layout.ranks() != ranks) continue;
      if (number++ % (world_size() / ranks) != world_rank() / ranks) continue;
      const std::string what = each.to_string();
      try {
        const MatrixModel& model = matrix_models()[static_cast<std::size_t>(each.model)];
        const RunResult result =
            run_layout(model.config, each.layout, settings_of(each.model, runs), comm);
        EXPECT_EQ(result.fault, "") << what;
        compare(each, result, what);
      } catch (const std::exception& error) {
        fmt::print("{}\n{}\n", what, error.what());
        std::fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    }
    MPI_Comm_free(&comm);
  }
}

/// Compares every case with one rank in the same mode, bit for bit.
inline void compare_bits(const std::vector<MatrixCase>& cases, const MatrixRuns& runs,
                         const std::vector<RunResult>& one) {
  run_cases(
      cases, runs, [&](const MatrixCase& each, const RunResult& result, const std::string& what) {
        EXPECT_EQ(first_difference(one[static_cast<std::size_t>(each.model)], result), "") << what;
      });
}

}  // namespace trireme::parallel::test
