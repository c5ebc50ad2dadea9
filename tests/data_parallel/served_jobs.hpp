// Jobs of workers and parameter servers, and the same training by all-reduce.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/data_parallel/server_link.hpp"

#include "data_parallel/served.hpp"
#include "parallel/layouts.hpp"

namespace trireme::data_parallel::test {

using namespace parallel::test;  // NOLINT(google-build-using-namespace): layouts.hpp

inline int ranks_of_launch() {
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
  int skipped = -1;        // a step whose update is skipped
  bool simulated = false;  // workers compute on simulated devices
  MakeTestDevice make_device() const {
    return simulated ? make_simulated_device : MakeTestDevice();
  }
  std::string to_string() const {
    return fmt::format(
        "{} workers{}, {} servers, gradients {}, compute {}, {}, {} mode, micro-batch {}, clip {}",
        workers, simulated ? " on devices" : "", servers, name_of(gradients), name_of(compute),
        tied ? "tied" : "untied", reproducible ? "reproducible" : "fast", micro_batch, clip);
  }
};

inline constexpr int global_batch = 24;

inline LayoutCase layout_of(const Job& job) {
  return {.data = job.workers, .micro_batch = job.micro_batch};
}

inline parallel::StageOptions options_of(const Job& job, bool served) {
  parallel::StageOptions options = stage_options(layout_of(job), {.global_batch = global_batch,
                                                                  .reproducible = job.reproducible,
                                                                  .make_device = job.make_device(),
                                                                  .compute = job.compute});
  options.served = served;
  options.reads_masters = false;  // the units' copies are compared byte by byte
  return options;
}

/// A run as a worker sees it, and the optimizer state, whole and flat, by name.
struct Seen {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::uint64_t>> values;  // hashes, by step and tensor
  std::vector<std::vector<float>> states;
};

/// The units' copies of parameters, by group.
inline std::vector<std::uint64_t> hashes_of(LayoutRun& run) {
  const state::ModelState& state = run.replica.state();
  std::vector<std::uint64_t> hashes;
  for (int g = 0; g < state.shards().groups(); ++g) {
    std::vector<std::uint8_t> bytes(state.group_values(g).bytes());
    device::read(state.device(), bytes.data(), state.group_values(g));
    std::uint64_t hash = 14695981039346656037ULL;
    for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 1099511628211ULL;
    hashes.push_back(hash);
  }
  return hashes;
}

inline Seen train(LayoutRun& run, const Job& job) {
  Seen seen;
  run.replica.initialize();
  for (int step = 0; step < job.steps; ++step) {
    run.replica.start(make_batches(run.model.config(), run.layout,
                                   run.grid.coordinate(comm::Axis::data), step, global_batch));
    const parallel::StepSums sums = run.replica.finish();
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

/// The same training on the workers alone, by all-reduce.
inline Seen train_by_all_reduce(const Job& job, MPI_Comm workers) {
  LayoutRun run(served_model(job.tied), layout_of(job), options_of(job, false), workers,
                job.make_device());
  Seen seen = train(run, job);
  for (const auto& state : run.replica.optimizer().states()) {
    auto& values = seen.states.emplace_back(static_cast<std::size_t>(state.flat.elements()));
    device::read(run.ledger.device(), values.data(), state.flat);
  }
  return seen;
}

/// Callbacks of a job's ranks.
struct Roles {
  std::function<void(LayoutRun&, ServedWorker&, comm::rpc::Endpoint&)> work;  // on workers
  std::function<void(ServerShards&)> after{};  // on servers that served
  std::function<std::unique_ptr<parallel::DataParallel>(std::unique_ptr<parallel::DataParallel>)>
      wrap{};
};

/// Collective over `comm`, which has the job's ranks.
inline void serve(const Job& job, MPI_Comm comm, const Roles& roles) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const bool serves = rank >= job.workers;
  const Split side(comm, true, serves ? 1 : 0);
  const model::Transformer model(served_model(job.tied));
  parallel::StageOptions options = options_of(job, true);
  options.place.data = options.place.shard = job.workers;
  const parallel::Stage worker(model, options);
  const ServerPlace place{job.workers, job.servers, serves ? rank - job.workers : 0, job.gradients};
  comm::rpc::Endpoint endpoint(comm, {});
  Recorder recorder;
  if (serves) {
    device::MemoryLedger ledger;
    const auto servers = comm::make_mpi_communicator(side.get(), ledger);
    ServerShards shards(worker, place, served_optimizer(), 1, ledger);
    shards.initialize(7);
    ParameterServer server(shards, endpoint, *servers, recorder, {});
    EXPECT_EQ(server.serve(), "");
    if (roles.after) roles.after(shards);
    EXPECT_TRUE(endpoint.close());
    return;
  }
  ServedWorker* link = nullptr;
  const parallel::MakeMethod make =
      [&](const parallel::Stage& stage, const state::ModelState& state, ops::Ops& ops,
          device::MemoryLedger& ledger) -> std::unique_ptr<parallel::DataParallel> {
    auto made = std::make_unique<ServedWorker>(
        ServedWorker::Parts{stage, state, ops, endpoint, recorder, place}, ledger);
    link = made.get();
    if (roles.wrap) return roles.wrap(std::move(made));
    return made;
  };
  LayoutRun run(model.config(), layout_of(job), options_of(job, true), side.get(),
                job.make_device(), false, make);
  endpoint.start();
  try {
    roles.work(run, *link, endpoint);
  } catch (...) {  // servers would wait forever
    if (rank == 0) link->end("a worker failed");
    throw;
  }
  MPI_Barrier(side.get());
  if (rank == 0) link->end("");
  EXPECT_TRUE(endpoint.close());
}

/// Runs `each` on the ranks of every job for which this launch (1, 2, 4 or 7 ranks) is the smallest
/// that fits.
inline void for_each_size(
    const std::function<void(int workers, int servers, MPI_Comm comm)>& each) {
  const int size = ranks_of_launch();
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

/// Trains both ways and compares everything bit for bit. All-reduce runs on CPUs, except for bf16
/// on devices, because the CPU adds its products in another order.
inline void expect_equal(const Job& job, MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const Split workers(comm, rank < job.workers);
  Seen reference, found;
  Job by_all_reduce = job;
  if (job.compute == DType::f32) by_all_reduce.simulated = false;
  if (workers.get() != MPI_COMM_NULL) reference = train_by_all_reduce(by_all_reduce, workers.get());
  std::vector<std::vector<float>> states;  // of each server's ranges
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
  // Servers hold the optimizer state that worker 0 has by all-reduce.
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

}  // namespace trireme::data_parallel::test
