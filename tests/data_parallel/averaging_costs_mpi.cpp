// The cost of averaging: messages counted at the MPI profiling interface, and recorded bytes.
#include <atomic>
#include <cmath>

#include <gtest/gtest.h>

#include "data_parallel/averaging_runs.hpp"
#include "data_parallel/message_counts.hpp"

namespace {

std::atomic<std::int64_t> collectives{0};

}  // namespace

// MPI's profiling interface: the program's calls go through here.
extern "C" {
int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  ++collectives;
  return PMPI_Allreduce(send, receive, count, type, op, comm);
}
int MPI_Barrier(MPI_Comm comm) {
  ++collectives;
  return PMPI_Barrier(comm);
}
}

namespace trireme::train::test {
namespace {

/// Messages of this rank in a run that averages once, after that many steps.
struct Counted {
  std::int64_t messages = 0, collectives = 0;
};
Counted count_in(const RunConfig& config, const WorkerCase& layout) {
  const Counted before{data_parallel::test::messages_sent(), ::collectives};
  train_on(layout.ranks(), config);
  return {data_parallel::test::messages_sent() - before.messages,
          ::collectives - before.collectives};
}

// Twelve steps per average send as much as three. Over messages, because shared memory sends none.
TEST(AverageCosts, StepsSendNothing) {
  const Folder folder;
  const WorkerCase layout{.workers = world_size()};
  const auto count = [&](std::int64_t steps, const char* method) {
    RunConfig config = average_config(folder, fmt::format("{}-{}", method, steps), layout);
    config.data_parallel.method = method;
    config.comm = {.tensor = "mpi", .data = "mpi", .pipeline = "mpi", .world = "mpi"};
    config.train.steps = config.average.every = steps;
    return count_in(config, layout);
  };
  const Counted few = count(3, "average"), many = count(12, "average");
  EXPECT_EQ(many.collectives, few.collectives);
  if (world_size() == 1) return;
  EXPECT_GT(few.messages, 0);
  // What workers report of every step travels with the average; so much of it is no message more.
  EXPECT_EQ(many.messages, few.messages);
  // The counter works.
  EXPECT_GT(count(12, "allreduce").messages, count(3, "allreduce").messages);
}

// 2Ψ(n−1)/n bytes per average and nothing else between workers. Ψ: the parameters, plus the
// optimizer state if averaged.
TEST(AverageCosts, BytesMatchTheory) {
  const Folder folder;
  for (const WorkerCase& layout : worker_cases()) {
    if (layout.workers == 1) continue;
    for (const char* states : {"keep", "average"}) {
      RunConfig config =
          average_config(folder, fmt::format("{}-{}", layout.to_string(), states), layout);
      config.average.optimizer_state = states;
      train_on(layout.ranks(), config);
      if (world_rank() == 0) {
        const nlohmann::json summary = summary_of(config.train.output);
        EXPECT_EQ(summary.at("averages").at("count"), 3);
        double sent = 0;  // by this rank's replica
        for (const auto& rank : summary.at("ranks")) {
          const auto& axes = rank.at("communication");
          for (const char* across : {"world", "stage", "shard", "replica"}) {
            EXPECT_FALSE(axes.contains(across)) << across << " " << axes.dump();
          }
          if (rank.at("data") != 0) continue;
          const auto& data = axes.at("data");
          sent += data.at("bytes_per_step").get<double>();
          EXPECT_NEAR(data.at("bytes_per_step").get<double>(),
                      data.at("least_bytes_per_step").get<double>(),
                      0.05 * data.at("least_bytes_per_step").get<double>());
        }
        std::ifstream file(fs::path(config.train.output) / "attempts/0001/run.json");
        double parameters = nlohmann::json::parse(file).at("parameters");
        if (states == std::string("average")) parameters *= 3;  // and AdamW's moments
        // Per replica. Unsplit and tied rows of tensor ranks or stages and padding between rows add
        // a few percent in this small model.
        const double theory = 3.0 / 8 * 2 * 4 * parameters * (layout.workers - 1) / layout.workers;
        const bool split = layout.tensor * layout.pipeline > 1;
        EXPECT_GT(sent, 0.999 * theory) << layout.to_string();
        EXPECT_LT(sent, (split ? 1.5 : 1.05) * theory) << layout.to_string();
      }
      quiet_barrier();
    }
  }
}

}  // namespace
}  // namespace trireme::train::test
