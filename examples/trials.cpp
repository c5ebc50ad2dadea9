// Remote calls without a server of parameters: a random search of hyper-parameters (Bergstra and
// Bengio, 2012), whose trials rank 0 hands out to whoever is free.
//
//   mpirun -n 4 build/release/examples/trials 64
//
// A trial is gradient descent with momentum on a narrow valley, f(x) = ½ Σ cᵢ xᵢ² with curvatures c
// from 1 to 100; what it finds depends on its number alone, so the best is the same for any number
// of ranks.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/comm/session.hpp"

namespace {

namespace rpc = trireme::comm::rpc;

struct Trial {
  std::int64_t number = -1;  // −1: none is left
  double learning_rate = 0, momentum = 0;
};
struct Result {
  Trial trial;
  double loss = 0;
};

constexpr rpc::Method<Result, Trial> next_trial{"next_trial"};
constexpr rpc::Method<rpc::Nothing, Result> best_so_far{"best_so_far"};

/// Learning rate between 10⁻⁴ and 10⁻¹ on a logarithmic scale, momentum below 1.
Trial draw(std::int64_t number) {
  const auto n = static_cast<std::uint64_t>(number);
  std::uint64_t state = (n + 1) * 0x9e3779b97f4a7c15ULL;
  const auto uniform = [&state] {
    state ^= state >> 30;
    state *= 0xbf58476d1ce4e5b9ULL;
    state ^= state >> 27;
    return static_cast<double>(state >> 11) * 0x1.0p-53;
  };
  const double rate = std::pow(10.0, -4 + 3 * uniform());
  return {.number = number, .learning_rate = rate, .momentum = uniform()};
}

double run(const Trial& trial) {
  constexpr int dimensions = 40;
  std::vector<double> x(dimensions, 1.0);
  std::vector<double> velocity(dimensions, 0.0);
  double loss = 0;
  for (int step = 0; step < 2000; ++step) {
    loss = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double curvature = std::pow(100.0, static_cast<double>(i) / (dimensions - 1));
      velocity[i] = trial.momentum * velocity[i] - trial.learning_rate * curvature * x[i];
      x[i] += velocity[i];
      loss += 0.5 * curvature * x[i] * x[i];
    }
  }
  return std::isfinite(loss) ? loss : INFINITY;
}

/// What rank 0 keeps.
class Search {
 public:
  explicit Search(std::int64_t trials) : trials_(trials) {}
  Trial take(const Result& result) {
    const std::lock_guard lock(mutex_);
    if (result.trial.number >= 0) {
      ++finished_;
      if (best_.trial.number < 0 || result.loss < best_.loss) best_ = result;
    }
    if (begun_ >= trials_) return {};
    return draw(begun_++);
  }
  Result best() {
    const std::lock_guard lock(mutex_);
    return best_;
  }
  std::int64_t finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  std::mutex mutex_;
  std::int64_t trials_, begun_ = 0, finished_ = 0;
  Result best_;
};

}  // namespace

int main(int argc, char** argv) {
  trireme::comm::Session session(&argc, &argv);
  Search search(argc > 1 ? std::atoll(argv[1]) : 64);
  rpc::Endpoint endpoint(session.world(), {});
  endpoint.serve(next_trial, [&](rpc::Call<Trial> call, const Result& result) {
    call.reply(search.take(result));
  });
  endpoint.serve(best_so_far,
                 [&](rpc::Call<Result> call, rpc::Nothing) { call.reply(search.best()); });
  endpoint.start();

  // Rank 0 tries too: its handlers run on another thread.
  std::int64_t tried = 0;
  Result result;
  for (;;) {
    result.trial = endpoint.call(next_trial, 0, result).get();
    if (result.trial.number < 0) break;
    result.loss = run(result.trial);
    ++tried;
  }
  std::printf("rank %d tried %lld\n", session.rank(), static_cast<long long>(tried));
  std::fflush(stdout);
  MPI_Barrier(session.world());
  const Result best = endpoint.call(best_so_far, 0, {}).get();
  if (session.rank() == 0) {
    std::printf("best of %lld: trial %lld, learning rate %.6g, momentum %.6g, loss %.6g\n",
                static_cast<long long>(search.finished()),
                static_cast<long long>(best.trial.number), best.trial.learning_rate,
                best.trial.momentum, best.loss);
  }
  MPI_Barrier(session.world());
  endpoint.close();
}
