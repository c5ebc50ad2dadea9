// Whole training steps: forward, backward, gradient norm, clipping, AdamW, of two GPT-2 models on
// synthetic tokens, beside the matrix-product peak measured in the same run, before and after
// (ARCHITECTURE: "A run's record" says how both are counted).
#include <algorithm>

#include <benchmark/benchmark.h>

#include "trireme/parallel/replica.hpp"
#include "trireme/plan/peak.hpp"

#include "random_batch.hpp"

namespace trireme {
namespace {

struct StepCase {
  std::int64_t layers, width, heads, vocabulary, sequence, batch;
};

void training_step(benchmark::State& state, const StepCase& c) {
  model::ModelConfig config{.layers = c.layers,
                            .width = c.width,
                            .heads = c.heads,
                            .vocabulary = c.vocabulary,
                            .sequence = c.sequence};
  config.resolve();
  device::MemoryLedger ledger;
  Recorder recorder;
  const model::Transformer model(config);
  comm::Session session(nullptr, nullptr);  // MPI runs already
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  parallel::Replica replica(model, {.stage = {.sequences = c.batch}, .threads = 0, .seed = 1}, grid,
                            recorder, ledger);
  replica.initialise();
  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(bench::random_batch(config, c.batch));

  std::int64_t step = 0;
  const auto train = [&] {
    const double norm = replica.backward(batches).gradient_norm;
    replica.update(1e-4, step++, optim::clip_factor(norm, 1.0));
  };
  const std::int64_t rows = c.batch * c.sequence;
  double peak = plan::measure_peak(replica.ops(), device::host_device(), DType::f32, model, rows);
  train();  // caches and first touches
  double best = 1e30, total = 0;
  for (auto _ : state) {
    const auto begin = Recorder::Clock::now();
    train();
    const double seconds = std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  peak = std::max(
      peak, plan::measure_peak(replica.ops(), device::host_device(), DType::f32, model, rows));
  const double operations = model.flops_per_token() * static_cast<double>(rows);
  const double mean = total / static_cast<double>(state.iterations());
  state.counters["tokens/s"] = static_cast<double>(rows) / mean;
  state.counters["GFLOP/s"] = operations / mean / 1e9;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["share_of_peak"] = operations / mean / peak;
  state.counters["best_share"] = operations / best / peak;
}

void BM_step_10M(benchmark::State& state) { training_step(state, {6, 384, 6, 256, 256, 12}); }
void BM_step_gpt2_124M(benchmark::State& state) {
  training_step(state, {12, 768, 12, 50257, 512, 2});
}

BENCHMARK(BM_step_10M)->Unit(benchmark::kMillisecond)->Iterations(6);
BENCHMARK(BM_step_gpt2_124M)->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  const trireme::comm::Session session(&argc, &argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
