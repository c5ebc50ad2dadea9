// Cost of the progress thread for the computing thread: products without it, beside it while it
// is idle, and beside it while a message is outstanding. `cpu_share` is the CPU time of all other
// threads of the process over the elapsed time: at most 0.02 with a message, 0 when idle.
#include <benchmark/benchmark.h>
#include <mpi.h>
#include <sys/resource.h>

#include "trireme/comm/progress.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/ops/ops.hpp"

namespace {

using trireme::Tensor;

/// A receive from this rank itself that completes after `answer`.
class Outstanding final : public trireme::device::Operation {
 public:
  void start() override { MPI_Irecv(&word_, 1, MPI_INT, 0, 7, MPI_COMM_SELF, &request_); }
  bool test() override {
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    return done != 0;
  }
  static void answer() {
    const int word = 1;
    MPI_Send(&word, 1, MPI_INT, 0, 7, MPI_COMM_SELF);
  }

 private:
  int word_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

double cpu_seconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

enum class Beside : std::uint8_t { nothing, idle, outstanding };

void BM_product(benchmark::State& state) {
  const auto beside = static_cast<Beside>(state.range(0));
  const auto ops = trireme::ops::make_cpu_ops(1);
  constexpr std::int64_t n = 512;
  std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F), c(n * n);
  const Tensor x(a.data(), {n, n}), y(b.data(), {n, n}), z(c.data(), {n, n});
  trireme::device::Stream stream;
  std::unique_ptr<trireme::comm::Progress> progress;
  if (beside != Beside::nothing) {
    progress =
        std::make_unique<trireme::comm::Progress>(std::vector<trireme::device::Stream*>{&stream});
  }
  trireme::device::Event event;
  if (beside == Beside::outstanding) {
    event = stream.enqueue(std::make_unique<Outstanding>());
    progress->wake();
  }
  ops->matmul(z, x, y, {});
  const double before = cpu_seconds(RUSAGE_SELF) - cpu_seconds(RUSAGE_THREAD);
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) ops->matmul(z, x, y, {});
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  const double others = cpu_seconds(RUSAGE_SELF) - cpu_seconds(RUSAGE_THREAD) - before;
  state.counters["cpu_share"] = others / passed.count();
  if (beside == Beside::outstanding) {
    Outstanding::answer();
    event.wait();
  }
  progress.reset();
}
BENCHMARK(BM_product)
    ->ArgName("0 alone, 1 idle, 2 outstanding")
    ->DenseRange(0, 2)
    ->MinTime(2)
    ->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  const trireme::comm::Session session(&argc, &argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
