// Whole training steps: forward, backward, gradient norm, clipping, AdamW, of two GPT-2 models on
// synthetic tokens, beside the matrix-product peak measured in the same run, before and after
// (ARCHITECTURE: "A run's record" says how both are counted).
#include <algorithm>

#include <benchmark/benchmark.h>

#include "trireme/core/random.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/peak.hpp"

namespace trireme {
namespace {

struct StepCase {
  std::int64_t layers, width, heads, vocabulary, sequence, batch;
};

parallel::HostMicrobatch random_batch(const StepCase& c) {
  data::Batch batch{.sequences = c.batch, .length = c.sequence};
  const RandomKey key{1, Purpose::sample_order, 0};
  for (std::int64_t i = 0; i < c.batch * c.sequence; ++i) {
    const auto token = [&](std::int64_t place) {
      return static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(place)) %
                                       static_cast<std::uint64_t>(c.vocabulary));
    };
    batch.inputs.push_back(token(i));
    batch.targets.push_back(token(i + 1));
    batch.weights.push_back(1);
    batch.positions.push_back(static_cast<std::int32_t>(i % c.sequence));
  }
  for (std::int64_t i = 0; i < c.batch; ++i) batch.samples.push_back(i);
  return parallel::HostMicrobatch(std::move(batch));
}

void training_step(benchmark::State& bench, const StepCase& c) {
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
  batches.push_back(random_batch(c));

  std::int64_t step = 0;
  const auto train = [&] {
    replica.backward(batches);
    replica.update(1e-4, step++, optim::clip_factor(replica.gradient_norm(), 1.0));
  };
  const std::int64_t rows = c.batch * c.sequence;
  double peak = plan::measure_peak(replica.ops(), device::host_device(), DType::f32, model, rows);
  train();  // caches and first touches
  double best = 1e30, total = 0;
  for (auto _ : bench) {
    const auto begin = Recorder::Clock::now();
    train();
    const double seconds = std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  peak = std::max(
      peak, plan::measure_peak(replica.ops(), device::host_device(), DType::f32, model, rows));
  const double operations = model.flops_per_token() * static_cast<double>(rows);
  const double mean = total / static_cast<double>(bench.iterations());
  bench.counters["tokens/s"] = static_cast<double>(rows) / mean;
  bench.counters["GFLOP/s"] = operations / mean / 1e9;
  bench.counters["peak_GFLOP/s"] = peak / 1e9;
  bench.counters["share_of_peak"] = operations / mean / peak;
  bench.counters["best_share"] = operations / best / peak;
}

void BM_step_10M(benchmark::State& bench) { training_step(bench, {6, 384, 6, 256, 256, 12}); }
void BM_step_gpt2_124M(benchmark::State& bench) {
  training_step(bench, {12, 768, 12, 50257, 512, 2});
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
