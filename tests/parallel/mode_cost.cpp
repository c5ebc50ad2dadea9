// The cost of reproducible mode: seconds per step in both modes and their ratio, for layouts of as
// many ranks as the launch has. A measurement, run by hand (docs/reproducibility.md).
#include <chrono>

#include <mpi.h>

#include "matrix.hpp"

namespace trireme::parallel::test {
namespace {

/// Seconds of the fastest of five steps after a first one, on the slowest rank.
double seconds_per_step(const model::ModelConfig& config, const LayoutCase& layout,
                        bool reproducible) {
  const RunSettings settings{.global_batch = 16, .reproducible = reproducible};
  LayoutRun run(config, layout, stage_options(layout, settings), MPI_COMM_WORLD);
  run.replica.initialize();
  double best = 1e30;
  for (int step = 0; step < 6; ++step) {
    const auto batches = make_batches(config, layout, run.grid.coordinate(comm::Axis::data), step,
                                      settings.global_batch);
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = std::chrono::steady_clock::now();
    const double norm = run.replica.backward(batches).gradient_norm;
    run.replica.update(1e-3, step, optim::clip_factor(norm, 1.0));
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (step > 0) best = std::min(best, seconds);
  }
  return best;
}

void measure() {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  model::ModelConfig larger{
      .layers = 6, .width = 128, .heads = 4, .vocabulary = 256, .sequence = 128};
  larger.resolve();
  const std::vector<std::pair<std::string, model::ModelConfig>> models = {
      {"odd GPT-2, 3 x 24", matrix_models().front().config}, {"GPT-2, 6 x 128", larger}};
  const std::vector<LayoutCase> layouts = {
      {.micro_batch = 4},
      {.data = 4, .zero = 1, .micro_batch = 4},
      {.tensor = 4, .micro_batch = 4},
      {.tensor = 4, .sequence_parallel = true, .micro_batch = 4},
      {.pipeline = 4, .micro_batch = 4}};
  for (const auto& [name, config] : models) {
    for (const LayoutCase& layout : layouts) {
      if (layout.ranks() != size) continue;
      const double fast = seconds_per_step(config, layout, false);
      const double exact = seconds_per_step(config, layout, true);
      if (rank > 0) continue;
      fmt::print("{}: {:.1f} ms fast, {:.1f} ms reproducible, ratio {:.1f}: {}\n", name, 1e3 * fast,
                 1e3 * exact, exact / fast, layout.to_string());
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  trireme::parallel::test::measure();
  MPI_Finalize();
}
