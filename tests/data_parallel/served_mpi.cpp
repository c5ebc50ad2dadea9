// Steps with parameter servers against the same steps by all-reduce, over several numbers of
// workers and servers: bits, bytes, the order of events, and failures.
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <thread>

#include <gmock/gmock.h>

#include "data_parallel/served_jobs.hpp"

namespace trireme::data_parallel::test {
namespace {

constexpr std::int64_t word = sizeof(float);

TEST(Served, IsAllReduceBitForBit) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    // Reproducible mode needs powers of two; for other numbers the test compares what does not
    // depend on the norm, whose rows the fast mode adds in parts.
    if (workers == 3) return;
    expect_equal({.workers = workers, .servers = servers}, comm);
    expect_equal(
        {.workers = workers, .servers = servers, .tied = false, .micro_batch = 3, .clip = 0}, comm);
    expect_equal({.workers = workers, .servers = servers, .micro_batch = 2, .skipped = 1}, comm);
  });
}

TEST(Served, IsAllReduceBitForBitInBf16) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    if (workers == 3 || servers == 3) return;
    expect_equal({.workers = workers, .servers = servers, .compute = DType::bf16, .micro_batch = 3},
                 comm);
  });
}

// Workers on devices, whose gradients and weights are staged in host memory.
TEST(Served, OnDevicesIsAllReduceBitForBit) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    if (workers == 3) return;
    const Job job{.workers = workers, .servers = servers, .simulated = true};
    expect_equal(job, comm);
    Job other = job;
    other.tied = false;
    other.micro_batch = 3;
    other.skipped = 1;
    expect_equal(other, comm);
    other.compute = DType::bf16;
    expect_equal(other, comm);
  });
}

// The device rounds gradients as the CPU does.
TEST(Served, OnDevicesRoundsGradientsAlike) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    if (workers == 3) return;
    Job job{.workers = workers, .servers = servers, .gradients = DType::bf16, .micro_batch = 3};
    std::map<bool, Seen> seen;
    for (const bool simulated : {false, true}) {
      job.simulated = simulated;
      serve(job, comm, {.work = [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
              seen[simulated] = train(run, job);
            }});
    }
    EXPECT_EQ(seen[true].losses, seen[false].losses) << job.to_string();
    EXPECT_EQ(seen[true].norms, seen[false].norms) << job.to_string();
    EXPECT_EQ(seen[true].values, seen[false].values) << job.to_string();
  });
}

// Fences order copies to and from servers.
TEST(Served, OnDevicesTheHostWaitsOnceInAStep) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    for (const DType gradients : {DType::f32, DType::bf16}) {
      const Job job{.workers = workers,
                    .servers = servers,
                    .gradients = gradients,
                    .reproducible = false,
                    .simulated = true};
      serve(job, comm, {.work = [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
              auto& device =
                  dynamic_cast<testing_support::SimulatedDevice&>(run.replica.state().device());
              run.replica.initialize();
              for (int step = 0; step < job.steps; ++step) {
                const std::uint64_t before = device.waits();
                run.replica.start(make_batches(run.model.config(), run.layout,
                                               run.grid.coordinate(comm::Axis::data), step,
                                               global_batch));
                run.replica.finish();
                run.replica.update(3e-3, step, 1);
                EXPECT_EQ(device.waits() - before, 1U) << job.to_string();
              }
            }});
    }
  });
}

// In fast mode too, gradients are added in one tree over ranks; only the norm's rows are added in
// other parts: n terms of a row in fp64 differ by at most n·2⁻⁵³.
TEST(Served, IsWithinBoundsOfAllReduceInFastMode) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    const Job job{.workers = workers, .servers = servers, .reproducible = false, .clip = 0};
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    const Split side(comm, rank < workers);
    Seen reference, found;
    if (rank < workers) reference = train_by_all_reduce(job, side.get());
    serve(job, comm, {.work = [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
            found = train(run, job);
          }});
    if (rank >= workers) return;
    EXPECT_EQ(found.losses, reference.losses) << job.to_string();
    EXPECT_EQ(found.values, reference.values) << job.to_string();
    for (std::size_t i = 0; i < found.norms.size(); ++i) {
      EXPECT_NEAR(found.norms[i], reference.norms[i], 1e-10 * reference.norms[i]);
    }
  });
}

// A rounded contribution is off by at most 2⁻⁸ of itself, hence the norm of the sum by at most 2⁻⁸
// of the sum of the workers' norms (Minkowski).
TEST(Served, RoundedGradientsAreWithinBounds) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    Job job{.workers = workers, .servers = servers, .reproducible = false, .clip = 0, .steps = 1};
    std::map<DType, double> norms;
    double own = 0;
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    for (const DType gradients : {DType::f32, DType::bf16}) {
      job.gradients = gradients;
      serve(job, comm, {.work = [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
              norms[gradients] = train(run, job).norms.front();
              const Tensor gradient = run.replica.state().gradients();
              own = 0;
              for (std::int64_t i = 0; i < gradient.elements(); ++i) {
                own += std::pow(static_cast<double>(gradient.as<float>()[i]), 2);
              }
              own = std::sqrt(own);
            }});
    }
    if (rank >= workers) own = 0;
    double all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, comm);
    if (rank >= workers) return;
    const double error = std::abs(norms[DType::bf16] - norms[DType::f32]);
    EXPECT_LE(error, std::ldexp(all, -8)) << job.to_string();
    EXPECT_GT(error, 0) << "nothing was rounded";
  });
}

// 2Ψ per worker and step: Ψ of gradients out and Ψ of values in, half of the former in bf16.
TEST(Served, SendsTwiceTheParameters) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    for (const auto& [gradients, simulated] :
         {std::pair(DType::f32, false), std::pair(DType::bf16, false), std::pair(DType::f32, true),
          std::pair(DType::bf16, true)}) {
      const Job job{.workers = workers,
                    .servers = servers,
                    .gradients = gradients,
                    .reproducible = false,
                    .steps = 3,
                    .simulated = simulated};
      serve(job, comm, {.work = [&](LayoutRun& run, ServedWorker& link, comm::rpc::Endpoint&) {
              train(run, job);
              const auto parameters = static_cast<double>(run.model.table().elements());
              const auto width = static_cast<double>(size_of(job.gradients));
              const double out = job.steps * parameters * width;
              EXPECT_NEAR(static_cast<double>(link.sent()), out, 0.05 * out) << job.to_string();
              const double in = job.steps * parameters * static_cast<double>(word);
              EXPECT_NEAR(static_cast<double>(link.received()), in, 0.05 * in) << job.to_string();
            }});
    }
  });
}

/// Holds back the last bucket until the first one has arrived.
class WaitsForTheFirst final : public parallel::DataParallel {
 public:
  WaitsForTheFirst(std::unique_ptr<parallel::DataParallel> method, bool& seen)
      : method_(std::move(method)), seen_(seen) {}
  void fetch() override { method_->fetch(); }
  device::Event reduce(const params::Range& elements, const Tensor& gradient,
                       device::Stream& stream) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    // Backward runs from the last unit to the first.
    while (elements.begin == 0 && first_ && !first_->done() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (elements.begin == 0) seen_ = first_ && first_->done();
    device::Event event = method_->reduce(elements, gradient, stream);
    if (!first_) first_ = event;
    return event;
  }
  void start_norm(ops::Ops& ops) override { method_->start_norm(ops); }
  double finish_norm() override { return method_->finish_norm(); }
  void update(double rate, std::int64_t step, double scale) override {
    method_->update(rate, step, scale);
  }
  void skip() override { method_->skip(); }

 private:
  std::unique_ptr<parallel::DataParallel> method_;
  bool& seen_;
  std::optional<device::Event> first_;
};

TEST(Served, PushesDuringBackward) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    for (const bool simulated : {false, true}) {
      const Job job{.workers = workers,
                    .servers = servers,
                    .reproducible = false,
                    .steps = 1,
                    .simulated = simulated};
      bool seen = false;
      serve(job, comm,
            {.work =
                 [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
                   train(run, job);
                   EXPECT_TRUE(seen) << job.to_string();
                 },
             .wrap =
                 [&](std::unique_ptr<parallel::DataParallel> method) {
                   return std::make_unique<WaitsForTheFirst>(std::move(method), seen);
                 }});
    }
  });
}

// Lost or duplicated gradients, and gradients of another step, stop the run.
TEST(Served, DetectsLostAndDuplicatedGradients) {
  if (ranks_of_launch() == 1) GTEST_SKIP() << "for two ranks";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const Split pair(MPI_COMM_WORLD, rank < 2);
  if (pair.get() == MPI_COMM_NULL) return;
  const Job job{.tied = true};
  serve(job, pair.get(),
        {.work = [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint& endpoint) {
          using testing::HasSubstr;
          const state::ModelState& state = run.replica.state();
          const int groups = state.shards().groups();
          const auto push = [&](std::int64_t step, int group) {
            return endpoint.call(messages::push, 1, {step, group},
                                 messages::bytes_of(state.group_gradient(group % groups)));
          };
          for (int g = 1; g < groups; ++g) EXPECT_EQ(fault_of(push(0, g)), "nothing");
          EXPECT_THAT(fault_of(endpoint.call(messages::norm, 1, std::int64_t{0})),
                      HasSubstr("no gradient of group 0 has come from worker 0 in this step"));
          EXPECT_THAT(fault_of(push(0, 1)), HasSubstr("a second gradient of group 1 in one step"));
          EXPECT_THAT(fault_of(push(1, 0)), HasSubstr("a gradient of step 1 in step 0"));
          EXPECT_THAT(fault_of(push(0, groups)), HasSubstr("is not this server's"));
          EXPECT_THAT(fault_of(endpoint.call(messages::settle, 1, messages::Settlement{.step = 0})),
                      HasSubstr("before its gradients are added"));
          const Tensor part = state.group_gradient(0).slice(0, 0, 16);
          EXPECT_THAT(fault_of(endpoint.call(messages::push, 1, {0, 0}, messages::bytes_of(part))),
                      HasSubstr("64 bytes of gradients for group 0"));
        }});
}

// Workers that settle different updates are an error.
TEST(Served, RefusesWorkersThatDisagree) {
  if (ranks_of_launch() < 3) GTEST_SKIP() << "for three ranks";
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const Split three(MPI_COMM_WORLD, rank < 3);
  if (three.get() == MPI_COMM_NULL) return;
  const Job job{.workers = 2, .servers = 1};
  serve(job, three.get(),
        {.work = [&](LayoutRun& run, ServedWorker& link, comm::rpc::Endpoint& endpoint) {
          const int own = run.session.rank();
          const state::ModelState& state = run.replica.state();
          for (int g = 0; g < state.shards().groups(); ++g) {
            endpoint.call(messages::push, 2, {0, g}, messages::bytes_of(state.group_gradient(g)))
                .get();
          }
          link.finish_norm();
          MPI_Barrier(run.comm);
          messages::Settlement settlement{.step = 0, .update = 1, .learning_rate = 0.1};
          comm::rpc::Future<comm::rpc::Nothing> first;
          if (own == 0) first = endpoint.call(messages::settle, 2, settlement);
          // A call answered after it.
          if (own == 0) endpoint.call(messages::norm, 2, std::int64_t{0}).get();
          MPI_Barrier(run.comm);
          if (own == 0) return;
          settlement.learning_rate = 0.2;
          EXPECT_THAT(fault_of(endpoint.call(messages::settle, 2, settlement)),
                      testing::HasSubstr("step 0: worker 1 settles another update"));
        }});
}

}  // namespace
}  // namespace trireme::data_parallel::test
