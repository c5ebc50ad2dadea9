// Collectives of ranks of one node by messages and through shared memory, turn by turn, so that the
// ratio means something on a busy machine; and a reduction of gradients beside products, as a step
// of training has it. Ranks are started by the launcher, each with one thread:
//   mpirun -n 2 collectives_bench [ROUNDS] [collectives|products]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/progress.hpp"
#include "trireme/ops/ops.hpp"

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

/// The data group by messages, and through shared memory.
struct Ways {
  comm::Grid messages, shared;
  Ways(const comm::Session& session, device::MemoryLedger& ledger)
      : messages(session, {{1, 1, session.size(), 1}}, ledger, 0, options("mpi")),
        shared(session, {{1, 1, session.size(), 1}}, ledger, 0, options("shared")) {}
  static comm::GridOptions options(const char* data) {
    comm::GridOptions result;
    result.comm.data = data;
    return result;
  }
  comm::Communicator& of(int way) { return (way == 0 ? messages : shared).group(comm::Axis::data); }
};

/// Milliseconds of `work(group)` by each way, medians over `rounds` of the slowest rank.
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

void collectives(Ways& ways, int rounds, bool speaks) {
  constexpr std::int64_t most = 24 << 20;  // floats
  std::vector<float> memory(most, 1.0F), apart(most);
  if (speaks)
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
      if (speaks) {
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

/// A backward pass of some 255 ms of products on one thread, whose 96 MB of gradients are reduced
/// in buckets as they come.
void beside_products(Ways& ways, int rounds, bool speaks) {
  const auto ops = ops::make_cpu_ops(1);
  constexpr std::int64_t n = 1024, all = 24 << 20;
  std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F), c(n * n), gradients(all, 1.0F);
  const Tensor x(a.data(), {n, n}), y(b.data(), {n, n}), z(c.data(), {n, n});
  ops->matmul(z, x, y, {});
  auto begin = Clock::now();
  for (int i = 0; i < 5; ++i) ops->matmul(z, x, y, {});
  const int products = std::max(24, static_cast<int>(255 / (milliseconds_since(begin) / 5)));
  if (speaks) {
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
        stream.synchronise();
        const double slowest = group.all_reduce(milliseconds_since(begin), comm::Reduction::max);
        if (round >= 0) times[static_cast<std::size_t>(way)].push_back(slowest);
      }
    }
    const double alone = median(times[2]);
    const double messages = median(times[0]) - alone, shared = median(times[1]) - alone;
    if (speaks) {
      fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} |\n", bucket * 4 >> 20, alone, messages,
                 shared, shared / messages);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  comm::Session session(&argc, &argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  device::MemoryLedger ledger;
  Ways ways(session, ledger);
  const std::string part = argc > 2 ? argv[2] : "";
  if (part != "products") collectives(ways, rounds, session.rank() == 0);
  if (part != "collectives") beside_products(ways, rounds, session.rank() == 0);
  return 0;
}
