// Independent workers against the same made by hand, and runs that were stopped against those that
// were not.
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/ops/ops.hpp"

#include "data_parallel/averaging_runs.hpp"

namespace trireme::train::test {
namespace {

/// A run of `config` on all ranks beside the reference: losses, norms, parameters and the optimizer
/// state of every worker.
void expect_as_by_hand(const RunConfig& config, const WorkerCase& layout, const Lost& lost = {}) {
  const std::string what =
      layout.to_string() + ", " + config.optim.name + ", states " + config.average.optimizer_state;
  train_on(layout.ranks(), config);
  if (world_rank() == 0) {
    const fs::path hand = config.train.output + "-hand";
    const auto expected = train_by_hand(config, layout.workers, hand, lost);
    const auto found = steps_of(config.train.output);
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (const auto& [step, line] : found) {
      const nlohmann::json values = nlohmann::json::parse(line);
      const HandStep& by_hand = expected[static_cast<std::size_t>(step - 1)];
      if (values.contains("skipped")) continue;
      EXPECT_NEAR(values.at("loss").get<double>(), by_hand.loss, 1e-14 * by_hand.loss) << what;
      EXPECT_NEAR(values.at("gradient_norm").get<double>(), by_hand.gradient_norm,
                  1e-14 * by_hand.gradient_norm)
          << what << " step " << step;
    }
    const std::string last = step_folder(config.train.steps);
    EXPECT_EQ(tensor_difference(config.train.output + ("/" + last), hand / last), "") << what;
    EXPECT_EQ(memory_fault(config.train.output), "") << what;
  }
  quiet_barrier();
}

// Every third step, and after the eighth and last.
TEST(Averaging, MatchesTheReferenceBitForBit) {
  const Folder folder;
  int number = 0;
  for (const WorkerCase& layout : worker_cases()) {
    for (const char* optimizer : {"adamw", "sgd"}) {
      for (const char* states : {"keep", "average", "reset"}) {
        if (optimizer == std::string("sgd") && states != std::string("average")) continue;
        RunConfig config = average_config(folder, fmt::format("run-{}", number++), layout);
        config.optim.name = optimizer;
        config.average.optimizer_state = states;
        expect_as_by_hand(config, layout);
      }
    }
  }
}

// The first worker's gradient is infinite in the fifth step: only that worker skips the update.
TEST(Averaging, OnlyTheWorkerWithABadGradientSkipsTheUpdate) {
  const Folder folder;
  for (const WorkerCase& layout : worker_cases()) {
    RunConfig config = average_config(folder, "run-" + layout.to_string(), layout);
    config.train.inject = "inf@5/0";
    expect_as_by_hand(config, layout,
                      [](int worker, std::int64_t step) { return worker == 0 && step == 5; });
    if (world_rank() == 0) {
      const std::string line = steps_of(config.train.output).at(5);
      EXPECT_EQ(nlohmann::json::parse(line).at("skipped"),
                fmt::format("not finite (by 1 of {} workers)", layout.workers));
    }
  }
}

// Stochastic rounding of bf16 weights is seeded by the step, and a skipped update counts as a step:
// all workers read the same model after the next average. The first worker skips a step between two
// averages, and the one before the second average.
TEST(Averaging, RoundsStochasticallyPastASkippedStep) {
  if (!ops::cpu_multiplies_bf16()) GTEST_SKIP() << "this processor does not multiply bf16";
  const Folder folder;
  for (const char* fault : {"inf@5/0", "inf@6/0"}) {
    const WorkerCase layout{.workers = world_size()};
    RunConfig config = average_config(folder, fmt::format("run-{}", fault[4]), layout);
    config.precision = {.compute = "bf16", .rounding = "stochastic"};
    config.train.inject = fault;
    const std::int64_t lost = fault[4] - '0';
    expect_as_by_hand(config, layout, [lost](int worker, std::int64_t step) {
      return worker == 0 && step == lost;
    });
    RunConfig nearest = config;
    nearest.train.output += "-nearest";
    nearest.precision.rounding = "nearest";
    train_on(layout.ranks(), nearest);
    if (world_rank() == 0) {
      const std::string last = step_folder(config.train.steps);
      EXPECT_NE(tensor_difference(fs::path(config.train.output) / last,
                                  fs::path(nearest.train.output) / last),
                "")
          << "rounding is never stochastic";
    }
    quiet_barrier();
  }
}

/// Σ|x|² of a checkpoint's tensor, and of its differences from another checkpoint's.
struct Squares {
  double own = 0, difference = 0;
};
Squares squares_of(const checkpoint::Reader& one, const checkpoint::Reader& other,
                   const checkpoint::Reader::Entry& tensor) {
  const auto read = [&](const checkpoint::Reader& reader) {
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
    reader.read(tensor.name, {}, Tensor(values.data(), DType::f32, tensor.shape));
    return values;
  };
  const auto a = read(one), b = read(other);
  Squares squares;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares.own += double{a[i]} * a[i];
    squares.difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return squares;
}

// With plain SGD the mean of the workers' weights equals the weights of the mean gradient up to
// rounding: u of a weight in its update, in each tree level and in both sums of the reference; plus
// the learning rate times the error of two gradients summed in different blocks
// (tests/parallel/fast_bounds.hpp), here √tokens·u of their norm.
TEST(Averaging, EveryStepWithSgdIsAllReduce) {
  const Folder folder;
  const WorkerCase layout{.workers = world_size()};
  const auto run = [&](const char* method, std::int64_t steps) {
    RunConfig config = average_config(folder, fmt::format("{}-{}", method, steps), layout);
    config.numerics.reproducible = false;
    config.data_parallel.method = method;
    config.average.every = 1;
    config.average.optimizer_state = "average";
    config.optim = {.name = "sgd", .learning_rate = 0.1, .weight_decay = 0, .clip = 0};
    config.optim.schedule = "constant";
    config.train.steps = steps;
    train_on(layout.ranks(), config);
    return fs::path(config.train.output);
  };
  const fs::path average = run("average", 1), reduced = run("allreduce", 1);
  const fs::path long_average = run("average", 12), long_reduced = run("allreduce", 12);
  if (world_rank() == 0) {
    const checkpoint::Reader a(average / step_folder(1)), b(reduced / step_folder(1));
    const double u = std::ldexp(1.0, -24);
    for (const auto& tensor : b.tensors()) {
      if (!tensor.name.starts_with("parameters/")) continue;
      const std::string row = tensor.name.substr(11);
      const Squares weights = squares_of(b, a, tensor);
      const Squares gradient = squares_of(b, a, *b.find("sgd.momentum/" + row));
      const double tokens = 16.0 * 19;
      const double bound =
          (3 + std::log2(layout.workers)) * u * std::sqrt(weights.own) +
          0.1 * 2 * std::sqrt(tokens) * u * std::max(std::sqrt(gradient.own), 1e-2);
      EXPECT_LE(std::sqrt(weights.difference), bound) << row;
    }
    const auto one = steps_of(long_average), other = steps_of(long_reduced);
    EXPECT_EQ(one.size(), 12U);
    for (const auto& [step, line] : one) {
      const double loss = nlohmann::json::parse(line).at("loss");
      EXPECT_NEAR(loss, nlohmann::json::parse(other.at(step)).at("loss").get<double>(),
                  1e-5 * loss);
    }
  }
  quiet_barrier();
}

// Stops, saves and evaluations due between two averages wait for the next one. A resumed run
// matches an uninterrupted one.
TEST(Averaging, ResumesBitForBit) {
  const Folder folder;
  int number = 0;
  for (const WorkerCase& layout : worker_cases()) {
    for (const char* states : {"keep", "average", "reset"}) {
      for (const char* outer : {"none", "nesterov"}) {
        RunConfig config = average_config(folder, fmt::format("straight-{}", number), layout);
        config.train.steps = 11;
        config.train.outlier = 20;  // so that each worker's history is saved
        config.average.every = 4;
        config.average.optimizer_state = states;
        config.average.outer = outer;
        config.checkpoint.async = number % 2 == 0;
        config.checkpoint.every = 5;
        config.checkpoint.keep = 9;
        train_on(layout.ranks(), config);
        const fs::path straight = config.train.output;
        config.train.output = (folder / fmt::format("halves-{}", number++)).string();
        config.train.stop_after = 5;
        const fs::path halves = config.train.output;
        train_on(layout.ranks(), config);
        if (world_rank() == 0) {
          EXPECT_TRUE(fs::exists(halves / step_folder(8)));
          EXPECT_EQ(steps_of(halves).size(), 8U);
        }
        quiet_barrier();
        config.train.stop_after = 0;
        train_on(layout.ranks(), config);
        if (world_rank() == 0) {
          const std::string what = fmt::format("{}, {}, {}", layout.to_string(), states, outer);
          EXPECT_FALSE(fs::exists(straight / step_folder(5)));
          for (const int step : {8, 11}) {
            EXPECT_EQ(difference(straight / step_folder(step), halves / step_folder(step)), "")
                << what;
          }
          EXPECT_EQ(memory_fault(straight), "") << what;
        }
        quiet_barrier();
      }
    }
  }
}

// A checkpoint of one method can be resumed by another.
TEST(Averaging, CheckpointsWorkWithEveryMethod) {
  const Folder folder;
  const WorkerCase layout{.workers = world_size()};
  RunConfig config = average_config(folder, "average", layout);
  config.train.steps = 3;
  train_on(layout.ranks(), config);
  const fs::path average = config.train.output;
  config.train.output = (folder / "reduced").string();
  config.checkpoint.resume = (average / step_folder(3)).string();
  config.data_parallel.method = "allreduce";  // no step left: only saves
  train_on(layout.ranks(), config);
  config.checkpoint.resume = (fs::path(config.train.output) / step_folder(3)).string();
  config.data_parallel.method = "average";
  config.train.output = (folder / "again").string();
  train_on(layout.ranks(), config);
  if (world_rank() == 0) {
    const checkpoint::Reader a(average / step_folder(3)), b(folder / "reduced" / step_folder(3)),
        c(folder / "again" / step_folder(3));
    for (const auto& tensor : b.tensors()) {
      EXPECT_EQ(values_of(a, *a.find(tensor.name)), values_of(b, tensor)) << tensor.name;
    }
    // Every worker starts from the only saved state: the first worker's.
    for (const auto& tensor : c.tensors()) {
      const std::size_t slash = tensor.name.find('/');
      const bool own = tensor.name.starts_with("worker-");
      const std::string name = own ? tensor.name.substr(slash + 1) : tensor.name;
      EXPECT_EQ(values_of(c, tensor), values_of(b, *b.find(name))) << tensor.name;
    }
    EXPECT_EQ(c.tensors().size(), a.tensors().size());
  }
  quiet_barrier();
}

}  // namespace
}  // namespace trireme::train::test
