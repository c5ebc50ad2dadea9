// Steps with parameter servers against the same steps by all-reduce, over several numbers of
// workers and servers: bits, bytes, the order of events, and what goes wrong.
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/served_worker.hpp"

#include "layouts.hpp"
#include "served.hpp"

namespace trireme::parallel::test {
namespace {

constexpr std::int64_t word = sizeof(float);

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

struct Job {
  int workers = 1, servers = 1;
  DType gradients = DType::f32, compute = DType::f32;
  bool tied = true, reproducible = true;
  int micro_batch = 1;
  double clip = 1;
  int steps = 4;
  int skipped = -1;  // a step whose update is not made
  std::string to_string() const {
    return fmt::format(
        "{} workers, {} servers, gradients {}, compute {}, {}, {} mode, micro-batch {}, clip {}",
        workers, servers, name_of(gradients), name_of(compute), tied ? "tied" : "untied",
        reproducible ? "reproducible" : "fast", micro_batch, clip);
  }
};

constexpr int global_batch = 24;

LayoutCase layout_of(const Job& job) {
  return {.data = job.workers, .micro_batch = job.micro_batch};
}

StageOptions options_of(const Job& job, bool served) {
  StageOptions options = stage_options(
      layout_of(job),
      {.global_batch = global_batch, .reproducible = job.reproducible, .compute = job.compute});
  options.served = served;
  return options;
}

/// What a worker sees of a run, and the optimiser's state, whole and flat, by name.
struct Seen {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::uint64_t>> values;  // hashes, by step and tensor
  std::vector<std::vector<float>> states;
};

/// Of what units read, by group.
std::vector<std::uint64_t> hashes_of(LayoutRun& run) {
  const state::ModelState& state = run.replica.state();
  std::vector<std::uint64_t> hashes;
  for (int g = 0; g < state.shards().groups(); ++g) {
    const Tensor values = state.group_values(g);
    const auto* bytes = static_cast<const std::uint8_t*>(values.data());
    std::uint64_t hash = 14695981039346656037ULL;
    for (std::size_t i = 0; i < values.bytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
    hashes.push_back(hash);
  }
  return hashes;
}

Seen train(LayoutRun& run, const Job& job) {
  Seen seen;
  run.replica.initialise();
  for (int step = 0; step < job.steps; ++step) {
    run.replica.start(make_batches(run.model.config(), run.layout,
                                   run.grid.coordinate(comm::Axis::data), step, global_batch));
    const StepSums sums = run.replica.finish();
    seen.losses.push_back(sums.loss.mean());
    seen.norms.push_back(sums.gradient_norm);
    if (step == job.skipped) {
      run.replica.skip();
    } else {
      run.replica.update(3e-3, step, optim::clip_factor(sums.gradient_norm, job.clip));
    }
    seen.values.push_back(hashes_of(run));
  }
  return seen;
}

/// The same on the workers alone, by all-reduce.
Seen train_by_all_reduce(const Job& job, MPI_Comm workers) {
  LayoutRun run(served_model(job.tied), layout_of(job), options_of(job, false), workers);
  Seen seen = train(run, job);
  for (const auto& state : run.replica.optimizer().states()) {
    const auto* values = state.flat.as<float>();
    seen.states.emplace_back(values, values + state.flat.elements());
  }
  return seen;
}

/// What the ranks of a job do beside serving.
struct Roles {
  std::function<void(LayoutRun&, ServedWorker&, comm::rpc::Endpoint&)> work;  // on workers
  std::function<void(ServerShards&)> after{};  // on servers that served
  std::function<std::unique_ptr<DataParallel>(std::unique_ptr<DataParallel>)> wrap{};
};

/// Collective over `comm`, which has the job's ranks.
void serve(const Job& job, MPI_Comm comm, const Roles& roles) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const bool serves = rank >= job.workers;
  const Split side(comm, true, serves ? 1 : 0);
  const model::Transformer model(served_model(job.tied));
  StageOptions options = options_of(job, true);
  options.place.data = options.place.shard = job.workers;
  const Stage worker(model, options);
  const ServerPlace place{job.workers, job.servers, serves ? rank - job.workers : 0, job.gradients};
  comm::rpc::Endpoint endpoint(
      comm, messages::options(static_cast<int>(worker.layout().groups().size())));
  Recorder recorder;
  if (serves) {
    device::MemoryLedger ledger;
    const auto servers = comm::make_mpi_communicator(side.get(), ledger);
    ServerShards shards(worker, place, served_optimizer(), 1, ledger);
    shards.initialise(7);
    ParameterServer server(shards, endpoint, *servers, recorder, {});
    EXPECT_EQ(server.serve(), "");
    if (roles.after) roles.after(shards);
    EXPECT_TRUE(endpoint.close());
    return;
  }
  ServedWorker* link = nullptr;
  const MakeMethod make = [&](const Stage& stage, const state::ModelState& state, ops::Ops& ops,
                              device::MemoryLedger& ledger) -> std::unique_ptr<DataParallel> {
    auto made = std::make_unique<ServedWorker>(
        ServedWorker::Parts{stage, state, ops, endpoint, recorder, place}, ledger);
    link = made.get();
    if (roles.wrap) return roles.wrap(std::move(made));
    return made;
  };
  LayoutRun run(model.config(), layout_of(job), options_of(job, true), side.get(), {}, false, make);
  endpoint.start();
  try {
    roles.work(run, *link, endpoint);
  } catch (...) {  // servers would wait for ever
    if (rank == 0) link->end("a worker failed");
    throw;
  }
  MPI_Barrier(side.get());
  if (rank == 0) link->end("");
  EXPECT_TRUE(endpoint.close());
}

/// Runs `each` on the ranks of every job that this launch is large enough for, and no smaller
/// launch of the tests (1, 2, 4 and 7 ranks) is.
void for_each_size(const std::function<void(int workers, int servers, MPI_Comm comm)>& each) {
  const int size = world_size();
  const int before = size == 7 ? 4 : size == 4 ? 2 : 1;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int workers = 1; workers <= 4; ++workers) {
    for (int servers = 1; servers <= 3; ++servers) {
      const int ranks = workers + servers;
      if (ranks > size || ranks <= before) continue;
      const Split job(MPI_COMM_WORLD, rank < ranks);
      if (job.get() != MPI_COMM_NULL) each(workers, servers, job.get());
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }
}

/// Trains both ways and compares everything bit for bit.
void expect_equal(const Job& job, MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const Split workers(comm, rank < job.workers);
  Seen reference, found;
  if (workers.get() != MPI_COMM_NULL) reference = train_by_all_reduce(job, workers.get());
  std::vector<std::vector<float>> states;  // as servers find them, of their ranges
  serve(job, comm,
        {.work = [&](LayoutRun& run, ServedWorker&,
                     comm::rpc::Endpoint&) { found = train(run, job); },
         .after =
             [&](ServerShards& shards) {
               for (const auto& state : shards.optimizer().states()) {
                 std::vector<float>& whole = states.emplace_back(
                     static_cast<std::size_t>(shards.state().layout().elements()), NAN);
                 for (int g = 0; g < shards.groups(); ++g) {
                   const params::Range& own = shards.shards().own(g);
                   const auto* values = state.flat.as<float>() + shards.shards().offset(g);
                   std::copy(values, values + own.size(), whole.begin() + own.begin);
                 }
               }
             }});
  if (rank < job.workers) {
    EXPECT_EQ(found.losses, reference.losses) << job.to_string();
    EXPECT_EQ(found.norms, reference.norms) << job.to_string();
    EXPECT_EQ(found.values, reference.values) << job.to_string();
  }
  // Servers hold the optimiser's state that worker 0 has by all-reduce.
  auto elements =
      static_cast<std::int64_t>(reference.states.empty() ? 0 : reference.states[0].size());
  MPI_Bcast(&elements, 1, MPI_INT64_T, 0, comm);
  for (std::size_t s = 0; s < 2; ++s) {
    std::vector<float> whole(static_cast<std::size_t>(elements));
    if (rank == 0) whole = reference.states[s];
    MPI_Bcast(whole.data(), static_cast<int>(elements), MPI_FLOAT, 0, comm);
    if (rank < job.workers) continue;
    std::size_t held = 0, differing = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (std::isnan(states[s][i])) continue;
      ++held;
      differing += states[s][i] != whole[i] ? 1U : 0U;
    }
    EXPECT_EQ(differing, 0U) << job.to_string() << " state " << s;
    EXPECT_GT(held, 0U);
  }
}

TEST(Served, IsAllReduceBitForBit) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    // Reproducible mode has powers of two; for other numbers what does not depend on the norm, of
    // which the fast mode adds rows in parts.
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

// In fast mode too, gradients are added in one tree over ranks; only the norm's rows are added in
// other parts: n terms of a row in fp64 differ by n·2⁻⁵³ at most.
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

// 2Ψ for each worker and step: Ψ of gradients out and Ψ of values in, half of the former in bf16.
TEST(Served, SendsTwiceTheParameters) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    for (const DType gradients : {DType::f32, DType::bf16}) {
      const Job job{.workers = workers,
                    .servers = servers,
                    .gradients = gradients,
                    .reproducible = false,
                    .steps = 3};
      serve(job, comm,
            {.work = [&](LayoutRun& run, ServedWorker& link, comm::rpc::Endpoint& endpoint) {
              train(run, job);
              const auto parameters = static_cast<double>(run.model.table().elements());
              const auto width = static_cast<double>(size_of(gradients));
              const double out = job.steps * parameters * width;
              const auto sent = static_cast<double>(endpoint.sent().bulk_bytes);
              EXPECT_NEAR(sent, out, 0.05 * out) << job.to_string();
              EXPECT_EQ(static_cast<std::int64_t>(sent), link.sent());
              EXPECT_LT(static_cast<double>(endpoint.sent().message_bytes), 0.05 * out);
              const double in = job.steps * parameters * static_cast<double>(word);
              EXPECT_NEAR(static_cast<double>(link.received()), in, 0.05 * in) << job.to_string();
            }});
    }
  });
}

/// Waits before it hands over the last bucket until the first one has arrived.
class WaitsForTheFirst final : public DataParallel {
 public:
  WaitsForTheFirst(std::unique_ptr<DataParallel> method, bool& seen)
      : method_(std::move(method)), seen_(seen) {}
  void fetch() override { method_->fetch(); }
  device::Event reduce(const params::Range& elements, device::Stream& stream) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    // Backward goes from the last unit to the first.
    while (elements.begin == 0 && first_ && !first_->done() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (elements.begin == 0) seen_ = first_ && first_->done();
    device::Event event = method_->reduce(elements, stream);
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
  std::unique_ptr<DataParallel> method_;
  bool& seen_;
  std::optional<device::Event> first_;
};

TEST(Served, PushesWhileBackwardGoesOn) {
  for_each_size([](int workers, int servers, MPI_Comm comm) {
    const Job job{.workers = workers, .servers = servers, .reproducible = false, .steps = 1};
    bool seen = false;
    serve(job, comm,
          {.work =
               [&](LayoutRun& run, ServedWorker&, comm::rpc::Endpoint&) {
                 train(run, job);
                 EXPECT_TRUE(seen) << job.to_string();
               },
           .wrap =
               [&](std::unique_ptr<DataParallel> method) {
                 return std::make_unique<WaitsForTheFirst>(std::move(method), seen);
               }});
  });
}

// Gradients that are lost or doubled on their way, or belong to another step, stop the run.
TEST(Served, MissesLostGradientsAndRefusesDoubledOnes) {
  if (world_size() == 1) GTEST_SKIP() << "for two ranks";
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

// Workers that would settle different updates are told apart.
TEST(Served, RefusesWorkersThatDisagree) {
  if (world_size() < 3) GTEST_SKIP() << "for three ranks";
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
          // A question that is answered after it.
          if (own == 0) endpoint.call(messages::norm, 2, std::int64_t{0}).get();
          MPI_Barrier(run.comm);
          if (own == 0) return;
          settlement.learning_rate = 0.2;
          EXPECT_THAT(fault_of(endpoint.call(messages::settle, 2, settlement)),
                      testing::HasSubstr("step 0: worker 1 settles another update"));
        }});
}

}  // namespace
}  // namespace trireme::parallel::test
