// An asynchronous parameter server that receives duplicated gradients.
#include <cmath>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/data_parallel/server_messages.hpp"

#include "data_parallel/served.hpp"

namespace trireme::data_parallel::test {
namespace {

using comm::rpc::Call;
using comm::rpc::Nothing;
using testing::HasSubstr;

constexpr double rate = 0.25;
constexpr int server_rank = 1;

void serve(const parallel::Stage& worker, const optim::OptimConfig& optim,
           comm::rpc::Endpoint& endpoint) {
  device::MemoryLedger ledger;
  ServerShards shards(worker, {.workers = 1, .servers = 1}, optim, 1, ledger);
  shards.initialize(7);
  WorkQueue queue;
  Recorder recorder;
  AsyncServer server(shards, endpoint, queue);
  server.set_options({.most_stale = 0});
  bool left = false;
  endpoint.serve(messages::leave, [&](Call<std::string> call, Nothing) {
    queue.post({"leave", [&left, call]() mutable {
                  call.reply({});
                  left = true;
                }});
  });
  endpoint.start();
  while (!left) queue.turn(1, recorder);
  EXPECT_EQ(server.counts().updates, 2);
  EXPECT_EQ(server.counts().repeated, 0);
  EXPECT_TRUE(endpoint.close());
}

/// The worker's side.
class Sending {
 public:
  Sending(const params::Layout& layout, comm::rpc::Endpoint& endpoint)
      : layout_(layout),
        endpoint_(endpoint),
        gradients_(static_cast<std::size_t>(layout.elements())) {}
  std::vector<float>& gradients() { return gradients_; }
  int groups() const { return static_cast<int>(layout_.groups().size()); }

  std::string push(std::int64_t ticket, int group) {
    const auto part = part_of(gradients_, group);
    return fault_of(
        endpoint_.call(messages::push, server_rank, {ticket, group}, std::as_bytes(part)));
  }
  std::string commit(std::int64_t ticket, std::int64_t version) {
    return fault_of(endpoint_.call(
        messages::commit, server_rank,
        {.ticket = ticket, .version = version, .learning_rate = rate, .gradient_scale = 1}));
  }
  std::vector<float> pull() {
    std::vector<float> values(gradients_.size());
    for (int g = 0; g < groups(); ++g) {
      endpoint_
          .call(messages::pull, server_rank, {0, g}, {}, std::as_writable_bytes(part_of(values, g)))
          .get();
    }
    return values;
  }

 private:
  std::span<float> part_of(std::vector<float>& all, int group) const {
    const params::Range& elements = layout_.groups()[static_cast<std::size_t>(group)].elements;
    return std::span(all).subspan(static_cast<std::size_t>(elements.begin),
                                  static_cast<std::size_t>(elements.size()));
  }

  const params::Layout& layout_;
  comm::rpc::Endpoint& endpoint_;
  std::vector<float> gradients_;
};

// Each gradient of a ticket updates the model once, whenever its duplicate arrives: before the
// commit, after it, or among the next ticket's.
TEST(Async, DuplicatedGradientsCountOnce) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) GTEST_SKIP() << "for two ranks";
  const Split pair(MPI_COMM_WORLD, rank < 2);
  if (pair.get() == MPI_COMM_NULL) return;
  const model::Transformer model(served_model(true));
  const parallel::Stage stage(model, served_options(1, 2, false));
  const params::Layout& layout = stage.layout();
  // p − rate · g, and nothing else.
  const optim::OptimConfig optim{.name = "sgd", .momentum = 0, .weight_decay = 0};
  comm::rpc::Endpoint endpoint(pair.get(), {});
  if (rank == server_rank) return serve(stage, optim, endpoint);

  endpoint.start();
  Sending worker(layout, endpoint);
  const std::vector<float> before = worker.pull();
  std::vector<double> sum(before.size());
  const auto fill = [&](double seed) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      worker.gradients()[i] = static_cast<float>(std::sin(seed + 0.7 * static_cast<double>(i)));
      sum[i] += static_cast<double>(worker.gradients()[i]);
    }
  };
  fill(1);
  for (int g = 0; g < worker.groups(); ++g) {
    EXPECT_EQ(worker.push(5, g), "nothing");
    EXPECT_THAT(worker.push(5, g), HasSubstr("a second gradient of group"));
  }
  EXPECT_THAT(worker.push(6, 0), HasSubstr("while worker 0 sends those of ticket 5"));
  EXPECT_THAT(worker.commit(6, 0), HasSubstr("of which worker 0 has sent nothing"));
  EXPECT_EQ(worker.commit(5, 0), "nothing");
  EXPECT_THAT(worker.push(5, 1), HasSubstr("ticket 5, which worker 0 has committed"));
  EXPECT_THAT(worker.commit(5, 1), HasSubstr("of which worker 0 has sent nothing"));
  fill(2);
  for (int g = 0; g < worker.groups(); ++g) {
    EXPECT_EQ(worker.push(6, g), "nothing");
    EXPECT_THAT(worker.push(5, g), HasSubstr("ticket 5, which worker 0 has committed"));
  }
  EXPECT_EQ(worker.commit(6, 1), "nothing");
  const std::vector<float> after = worker.pull();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double expected = static_cast<double>(before[i]) - rate * sum[i];
    // Two products and two differences in fp32, each of at most |p| + 2 rate.
    const double bound = std::ldexp(std::abs(static_cast<double>(before[i])) + 2 * rate, -22);
    wrong += std::abs(static_cast<double>(after[i]) - expected) > bound ? 1U : 0U;
  }
  EXPECT_EQ(wrong, 0U) << "of " << sum.size() << " values";
  endpoint.call(messages::leave, server_rank, {}).get();
  EXPECT_TRUE(endpoint.close());
}

}  // namespace
}  // namespace trireme::data_parallel::test
