// An average against double-precision arithmetic, and what independent workers send each other:
// nothing, but for averages.
#include <array>
#include <atomic>
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/core/half.hpp"
#include "trireme/data_parallel/averaging.hpp"
#include "trireme/parallel/replica.hpp"

#include "data_parallel/message_counts.hpp"
#include "parallel/layouts.hpp"

namespace {

constexpr int most_ranks = 16;
std::array<std::atomic<std::int64_t>, most_ranks> messages_to;  // by world rank

}  // namespace

/// Counts every message that this program passes to MPI (MPI's profiling interface).
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  int world_rank = -1;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(group, 1, &peer, world, &world_rank);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  ++messages_to.at(static_cast<std::size_t>(world_rank));
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

namespace trireme::data_parallel::test {

std::int64_t messages_sent() {
  std::int64_t sum = 0;
  for (const auto& messages : messages_to) sum += messages;
  return sum;
}

using namespace parallel::test;  // NOLINT(google-build-using-namespace): layouts.hpp
namespace {

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

LayoutCase workers_of(int tensor, int pipeline) {
  LayoutCase layout{.tensor = tensor, .pipeline = pipeline, .shard = 1};
  layout.data = world_size() / layout.ranks();
  layout.alone = true;
  return layout;
}

std::vector<LayoutCase> layouts_here() {
  std::vector<LayoutCase> layouts{workers_of(1, 1)};
  if (world_size() == 4) layouts.push_back(workers_of(2, 1));
  if (world_size() == 4) layouts.push_back(workers_of(1, 2));
  return layouts;
}

/// Like a worker's: it counts its own steps.
parallel::StageOptions worker_options(const LayoutCase& layout, const RunSettings& settings) {
  LayoutCase own = layout;
  own.data = 1;
  return stage_options(own, settings);
}

std::vector<double> doubles(device::Device& device, const Tensor& flat) {
  std::vector<float> values(static_cast<std::size_t>(flat.elements()));
  device::read(device, values.data(), flat);
  return {values.begin(), values.end()};
}

/// Synthetic values of a worker, the same on all ranks.
std::vector<float> synthetic_values(std::size_t n, int worker, int round, int buffer) {
  std::mt19937 random(static_cast<unsigned>(1000 * worker + 10 * round + buffer));
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(random);
  return values;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                 double bound, const std::string& what) {
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] - expected[i]));
  }
  EXPECT_LE(worst, bound) << what;
}

/// Three averages of synthetic parameters and states, in two buckets and a remainder.
void expect_arithmetic(const AverageConfig& config, const LayoutCase& layout,
                       const MakeTestDevice& make_device, DType compute) {
  const RunSettings settings{.reproducible = false, .make_device = make_device, .compute = compute};
  LayoutRun run(testing_support::odd_model(false), layout, worker_options(layout, settings),
                MPI_COMM_WORLD, make_device);
  parallel::Replica& replica = run.replica;
  const Tensor& flat = replica.state().parameters();
  const auto n = static_cast<std::size_t>(flat.elements());
  Averaging averaging(config, replica, run.grid.group(comm::Axis::data), flat.elements() * 2 / 5,
                      run.ledger);
  const int workers = layout.data, me = run.grid.coordinate(comm::Axis::data);
  device::Device& device = run.ledger.device();
  const auto write = [&](const Tensor& to, const std::vector<float>& values) {
    device::write(device, to, values.data());
  };
  write(flat, synthetic_values(n, 99, 0, 0));
  averaging.begin();
  std::vector<double> model = doubles(device, flat), momentum(n, 0.0);
  for (int round = 0; round < 3; ++round) {
    std::vector<double> mean(n, 0.0), mean_state(n, 0.0);
    for (int w = 0; w < workers; ++w) {
      const auto values = synthetic_values(n, w, round, 0),
                 state = synthetic_values(n, w, round, 1);
      for (std::size_t i = 0; i < n; ++i) mean[i] += double{values[i]} / workers;
      for (std::size_t i = 0; i < n; ++i) mean_state[i] += double{state[i]} / workers;
    }
    write(flat, synthetic_values(n, me, round, 0));
    const auto own_state = synthetic_values(n, me, round, 1);
    const Tensor& state = replica.optimizer().states()[1].flat;
    write(state, own_state);
    averaging.average(0);
    for (std::size_t i = 0; i < n; ++i) {
      const double gradient = model[i] - mean[i];
      momentum[i] = config.outer_momentum * momentum[i] + gradient;
      model[i] = config.outer == "none"
                     ? mean[i]
                     : model[i] - config.outer_learning_rate *
                                      (gradient + config.outer_momentum * momentum[i]);
    }
    // Values below 8 in magnitude, a dozen roundings per round, of which later rounds keep a share.
    const double bound = 8 * 16 * (round + 1) * std::ldexp(1.0, -24);
    const std::string what = layout.to_string() + " " + config.outer;
    expect_near(doubles(device, flat), model, bound, what);
    if (averaging.outer_momentum()) {
      expect_near(doubles(device, averaging.outer_momentum()), momentum, bound, what);
    }
    std::vector<double> kept(own_state.begin(), own_state.end());
    if (config.optimizer_state == "average") kept = mean_state;
    if (config.optimizer_state == "reset") kept.assign(n, 0.0);
    expect_near(doubles(device, state), kept, config.optimizer_state == "average" ? bound : 0,
                what);
    if (compute != DType::f32) {  // units read the new model, rounded
      std::vector<std::uint16_t> read(
          static_cast<std::size_t>(replica.state().own_values(0).elements()));
      device::read(device, read.data(), replica.state().own_values(0));
      const auto masters = doubles(device, replica.state().own_parameters(0));
      for (std::size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(read[i], float_to_bf16(static_cast<float>(masters[i])));
      }
    }
  }
}

TEST(Average, MatchesDoublePrecision) {
  for (const LayoutCase& layout : layouts_here()) {
    for (const char* outer : {"none", "nesterov"}) {
      for (const char* states : {"keep", "average", "reset"}) {
        const AverageConfig config{.optimizer_state = states, .outer = outer};
        expect_arithmetic(config, layout, {}, DType::f32);
        expect_arithmetic(config, layout, make_simulated_device, DType::bf16);
      }
    }
  }
}

/// This rank's activity with ranks of other workers: messages sent, and operations on streams of
/// groups with them, which may use shared memory.
std::int64_t activity_across(comm::Grid& grid) {
  std::int64_t activity = 0;
  for (int rank = 0; rank < grid.shape().size(); ++rank) {
    const auto data = static_cast<std::size_t>(comm::Axis::data);
    if (grid.shape().coordinates(rank)[data] == grid.coordinate(comm::Axis::data)) continue;
    activity += messages_to.at(static_cast<std::size_t>(rank));
  }
  for (const comm::GroupKind kind :
       {comm::GroupKind::data, comm::GroupKind::world, comm::GroupKind::stage,
        comm::GroupKind::shard, comm::GroupKind::replica}) {
    activity += grid.group(kind).traffic().total().operations;
  }
  return activity;
}

TEST(Average, NothingElseCrossesTheDataAxis) {
  for (const LayoutCase& layout : layouts_here()) {
    if (layout.data == 1) continue;
    const model::ModelConfig config = testing_support::odd_model(false);
    const RunSettings settings{.reproducible = false};
    LayoutRun run(config, layout, worker_options(layout, settings), MPI_COMM_WORLD);
    run.replica.initialize();
    Averaging averaging({}, run.replica, run.grid.group(comm::Axis::data),
                        LayoutRun::bucket_elements, run.ledger);
    run.grid.reset_traffic();
    const std::int64_t before = activity_across(run.grid);
    const auto step = [&](std::int64_t number) {
      LayoutCase own = layout;
      own.data = 1;
      const int me = run.grid.coordinate(comm::Axis::data);
      const auto batches = make_batches(config, own, 0, 10 * me + number, settings.global_batch);
      run.replica.update(1e-3, number,
                         optim::clip_factor(run.replica.backward(batches).gradient_norm, 1));
    };
    for (int number = 0; number < 3; ++number) step(number);
    EXPECT_EQ(activity_across(run.grid), before) << layout.to_string();
    averaging.average(0);
    const comm::Traffic sent = run.grid.group(comm::Axis::data).traffic().total();
    EXPECT_GT(activity_across(run.grid), before);
    const auto bytes = static_cast<double>(run.replica.stage().layout().elements()) * 4;
    const double least = 2 * bytes * (layout.data - 1) / layout.data;
    EXPECT_NEAR(static_cast<double>(sent.bytes), least, 0.05 * least) << layout.to_string();
    // The workers had diverged, and are one model now.
    check_replicas(run.replica, run.grid, 3, parallel::Alike::parameters);
    EXPECT_THROW(check_replicas(run.replica, run.grid, 3), AgreedError);
  }
}

}  // namespace
}  // namespace trireme::data_parallel::test
