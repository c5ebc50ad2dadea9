// Collectives of the ranks of one node by messages and through shared memory, in turns, so that the
// ratio holds on a busy machine; a reduction of gradients that overlaps products, as in a step of
// training; and whole steps of a model of 10.8 M parameters, two replicas in one process.
// Start ranks with the launcher, each with one thread:
//   mpirun -n 2 collectives_bench [ROUNDS] [collectives|products|steps]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/plan/measure_machine.hpp"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One grid that communicates tensors by messages, and one that uses shared memory.
struct Ways {
  comm::Grid messages, shared;
  Ways(const comm::Session& session, const comm::GridShape& shape, device::MemoryLedger& ledger)
      : messages(session, shape, ledger, options("mpi")),
        shared(session, shape, ledger, options("shared")) {}
  static comm::GridOptions options(const char* way) {
    comm::GridOptions result;
    result.comm.data = result.comm.tensor = way;
    return result;
  }
  comm::Grid& grid(int way) { return way == 0 ? messages : shared; }
  comm::Communicator& of(int way) { return grid(way).group(comm::Axis::data); }
};

/// Milliseconds of `work(group)` with either grid, medians over `rounds` of the slowest rank.
std::vector<double> compare(Ways& ways, int rounds,
                            const std::function<void(comm::Communicator&)>& work) {
  std::vector<std::vector<double>> times(2);
  for (int round = -1; round < rounds; ++round) {
    for (int way = 0; way < 2; ++way) {
      comm::Communicator& group = ways.of(way);
      group.barrier();
      const auto begin = Clock::now();
      work(group);
      const double slowest = group.all_reduce(milliseconds_since(begin), comm::Reduction::max);
      if (round >= 0) times[static_cast<std::size_t>(way)].push_back(slowest);
    }
  }
  return {median(times[0]), median(times[1])};
}

void collectives(Ways& ways, int rounds, bool is_root) {
  constexpr std::int64_t most = 24 << 20;  // floats
  std::vector<float> memory(most, 1.0F), apart(most);
  if (is_root)
    fmt::print("| collective | MiB | messages, ms | shared, ms | ratio |\n|---|---|---|---|---|\n");
  for (const std::int64_t count : {std::int64_t{1} << 10, std::int64_t{1} << 14,
                                   std::int64_t{1} << 18, std::int64_t{1} << 20, most}) {
    device::Stream stream;
    const int ranks = ways.of(0).size();
    const std::int64_t part = count / ranks;
    const Tensor all(memory.data(), {part * ranks});
    const Tensor own(apart.data(), {part});
    const int calls = count > 1 << 18 ? 1 : 20;
    const auto row = [&](const char* name, const auto& enqueue) {
      const auto times = compare(ways, rounds, [&](comm::Communicator& group) {
        for (int call = 0; call < calls; ++call) enqueue(group).wait();
      });
      if (is_root) {
        fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.2f} |\n", name,
                   static_cast<double>(count) * 4 / (1 << 20), times[0] / calls, times[1] / calls,
                   times[1] / times[0]);
      }
    };
    row("all-reduce", [&](comm::Communicator& group) {
      return group.all_reduce(all, comm::Reduction::max, stream);
    });
    row("reduce-scatter", [&](comm::Communicator& group) {
      return group.reduce_scatter(own, all, comm::Reduction::max, stream);
    });
    row("all-gather",
        [&](comm::Communicator& group) { return group.all_gather(all, own, stream); });
    row("broadcast", [&](comm::Communicator& group) { return group.broadcast(all, 0, stream); });
  }
}

/// A backward pass of about 255 ms of products on one thread, with 96 MB of gradients reduced
/// in buckets as they become ready.
void beside_products(Ways& ways, int rounds, bool is_root) {
  const auto ops = ops::make_cpu_ops(1);
  constexpr std::int64_t n = 1024, all = 24 << 20;
  std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F), c(n * n), gradients(all, 1.0F);
  const Tensor x(a.data(), {n, n}), y(b.data(), {n, n}), z(c.data(), {n, n});
  ops->matmul(z, x, y, {});
  auto begin = Clock::now();
  for (int i = 0; i < 5; ++i) ops->matmul(z, x, y, {});
  const int products = std::max(24, static_cast<int>(255 / (milliseconds_since(begin) / 5)));
  if (is_root) {
    fmt::print(
        "\n{} products of {} beside 96 MiB of gradients\n"
        "| bucket, MiB | compute alone, ms | extra by messages, ms | extra, shared, ms | ratio |\n"
        "|---|---|---|---|---|\n",
        products, n);
  }
  for (const std::int64_t bucket : {std::int64_t{1} << 20, std::int64_t{6} << 20}) {
    const auto buckets = static_cast<int>(all / bucket);
    std::vector<std::vector<double>> times(3);
    for (int round = -1; round < rounds; ++round) {
      for (int way = 0; way < 3; ++way) {  // 2: compute alone
        comm::Communicator& group = ways.of(way % 2);
        device::Stream stream;
        comm::Progress progress({&stream});
        group.barrier();
        begin = Clock::now();
        int reduced = 0;
        for (int i = 0; i < products; ++i) {
          ops->matmul(z, x, y, {});
          for (; way < 2 && reduced < buckets * (i + 1) / products; ++reduced) {
            group.all_reduce(Tensor(gradients.data() + reduced * bucket, {bucket}),
                             comm::Reduction::max, stream);
            progress.wake();
          }
        }
        stream.synchronize();
        const double slowest = group.all_reduce(milliseconds_since(begin), comm::Reduction::max);
        if (round >= 0) times[static_cast<std::size_t>(way)].push_back(slowest);
      }
    }
    const double alone = median(times[2]);
    const double messages = median(times[0]) - alone, shared = median(times[1]) - alone;
    if (is_root) {
      fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} |\n", bucket * 4 >> 20, alone, messages,
                 shared, shared / messages);
    }
  }
}

/// One replica of a model for either grid; their steps alternate.
void steps(const comm::Session& session, int rounds) {
  model::ModelConfig config;
  config.layers = 6;
  config.width = 384;
  config.heads = 6;
  config.vocabulary = 256;
  config.sequence = 256;
  config.resolve();
  const bool is_root = session.rank() == 0;
  if (is_root) {
    fmt::print(
        "\nsteps of 4 sequences of 256\n"
        "| layout | by messages, ms | shared, ms | ratio |\n|---|---|---|---|\n");
  }
  struct Case {
    const char* name;
    comm::GridShape shape;
    int zero = 0;
  };
  const int ranks = session.size();
  for (const Case& each :
       {Case{"data", {{1, 1, ranks, 1}}}, Case{"data, ZeRO 3", {{1, 1, ranks, 1}}, 3},
        Case{"tensor", {{ranks, 1, 1, 1}}}}) {
    device::MemoryLedger ledger;
    Recorder recorder;
    Ways ways(session, each.shape, ledger);
    parallel::ReplicaOptions options;
    options.stage.sequences = 4 / each.shape.of(comm::Axis::data);
    options.stage.zero = each.zero;
    const model::Transformer models[] = {model::Transformer(config), model::Transformer(config)};
    std::vector<std::unique_ptr<parallel::Replica>> replicas;
    for (int way = 0; way < 2; ++way) {
      replicas.push_back(std::make_unique<parallel::Replica>(models[way], options, ways.grid(way),
                                                             recorder, ledger));
      replicas.back()->initialize();
    }
    std::vector<parallel::HostMicrobatch> batches;
    batches.push_back(plan::random_batch(config, options.stage.sequences));
    std::vector<std::vector<double>> times(2);
    for (int round = -2; round < 2 * rounds; ++round) {
      for (int turn = 0; turn < 2; ++turn) {
        const int way = (turn + round + 2) % 2;  // alternate the order
        ways.messages.world().barrier();
        const auto begin = Clock::now();
        replicas[way]->backward(batches);
        replicas[way]->update(1e-4, round + 2, 1);
        if (round >= 0) times[way].push_back(milliseconds_since(begin));
      }
    }
    if (is_root) {
      const double by_messages = median(times[0]), shared = median(times[1]);
      fmt::print("| {} | {:.1f} | {:.1f} | {:.3f} |\n", each.name, by_messages, shared,
                 shared / by_messages);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  comm::Session session(&argc, &argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  device::MemoryLedger ledger;
  Ways ways(session, {{1, 1, session.size(), 1}}, ledger);
  const std::string part = argc > 2 ? argv[2] : "";
  const auto is_asked = [&](const char* name) { return part.empty() || part == name; };
  if (is_asked("collectives")) collectives(ways, rounds, session.rank() == 0);
  if (is_asked("products")) beside_products(ways, rounds, session.rank() == 0);
  if (is_asked("steps")) steps(session, rounds);
  return 0;
}
