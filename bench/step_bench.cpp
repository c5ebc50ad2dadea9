// Whole training steps: forward, backward, gradient norm, clipping, AdamW, of two GPT-2 models on
// synthetic tokens, in fp32 and bf16, beside the matrix-product peak of that type measured in the
// same run, before and after. TRIREME_BENCH_OPS=1 prints what each operation takes of a step
// (ARCHITECTURE: "A run's record" says how both are counted).
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <benchmark/benchmark.h>

#include "trireme/parallel/replica.hpp"
#include "trireme/plan/peak.hpp"

#include "measured_ops.hpp"
#include "random_batch.hpp"

namespace trireme {
namespace {

struct StepCase {
  std::int64_t layers, width, heads, vocabulary, sequence, batch;
  DType type = DType::f32;
};

/// What each operation took of a step.
void print_work(bench::MeasuredOps& measured, std::int64_t steps) {
  measured.measure(false);
  for (const auto& [name, work] : measured.work()) {
    const auto per_step = static_cast<double>(steps);
    std::fprintf(stderr, "%28s %6.0f calls %9.3f ms %7.1f GFLOP/s %6.1f GB/s\n", name.c_str(),
                 static_cast<double>(work.calls) / per_step, 1e3 * work.seconds / per_step,
                 work.operations / work.seconds / 1e9, work.bytes / work.seconds / 1e9);
  }
}

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
  bench::MeasuredOps* measured = nullptr;
  const bool by_operation = std::getenv("TRIREME_BENCH_OPS") != nullptr;
  const auto make_ops = [&](device::MemoryLedger& own, int threads, bool reproducible) {
    auto ops = std::make_unique<bench::MeasuredOps>(ops::make_cpu_ops(threads, &own, reproducible),
                                                    device::host_device());
    measured = ops.get();
    return ops;
  };
  parallel::ReplicaOptions options;
  options.stage = {.sequences = c.batch, .compute = c.type};
  options.threads = 0;
  options.seed = 1;
  if (by_operation) options.make_ops = make_ops;
  parallel::Replica replica(model, options, grid, recorder, ledger);
  replica.initialise();
  std::vector<parallel::HostMicrobatch> batches;
  batches.push_back(bench::random_batch(config, c.batch));

  std::int64_t step = 0;
  const auto train = [&] {
    replica.backward(batches);
    replica.update(1e-4, step++, optim::clip_factor(replica.gradient_norm(), 1.0));
  };
  const std::int64_t rows = c.batch * c.sequence;
  double peak = plan::measure_peak(replica.ops(), device::host_device(), c.type, model, rows);
  train();  // caches and first touches
  double best = 1e30, total = 0;
  if (measured != nullptr) measured->measure(true);
  for (auto _ : state) {
    const auto begin = Recorder::Clock::now();
    train();
    const double seconds = std::chrono::duration<double>(Recorder::Clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  if (measured != nullptr) print_work(*measured, state.iterations());
  peak =
      std::max(peak, plan::measure_peak(replica.ops(), device::host_device(), c.type, model, rows));
  const double operations = model.flops_per_token() * static_cast<double>(rows);
  const double mean = total / static_cast<double>(state.iterations());
  state.counters["tokens/s"] = static_cast<double>(rows) / mean;
  state.counters["GFLOP/s"] = operations / mean / 1e9;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["share_of_peak"] = operations / mean / peak;
  state.counters["best_share"] = operations / best / peak;
}

void BM_step_10M(benchmark::State& state) { training_step(state, {6, 384, 6, 256, 256, 12}); }
void BM_step_10M_bf16(benchmark::State& state) {
  training_step(state, {6, 384, 6, 256, 256, 12, DType::bf16});
}
void BM_step_gpt2_124M(benchmark::State& state) {
  training_step(state, {12, 768, 12, 50257, 1024, 4});
}
void BM_step_gpt2_124M_bf16(benchmark::State& state) {
  training_step(state, {12, 768, 12, 50257, 1024, 4, DType::bf16});
}

BENCHMARK(BM_step_10M)->Unit(benchmark::kMillisecond)->Iterations(6);
BENCHMARK(BM_step_10M_bf16)->Unit(benchmark::kMillisecond)->Iterations(6);
BENCHMARK(BM_step_gpt2_124M)->Unit(benchmark::kMillisecond)->Iterations(3);
BENCHMARK(BM_step_gpt2_124M_bf16)->Unit(benchmark::kMillisecond)->Iterations(3);

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
