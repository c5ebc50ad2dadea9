#include "trireme/plan/measure_machine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "trireme/comm/progress.hpp"
#include "trireme/core/random.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/report/statistics.hpp"

namespace trireme::plan {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Less than any clock here resolves: no time is 0.
constexpr double clock_seconds = 1e-7;

double spread_of(const std::vector<double>& seconds) {
  return (report::quantile(seconds, 0.9) - report::quantile(seconds, 0.1)) / 2 /
         std::max(report::quantile(seconds, 0.5), clock_seconds);
}

/// Values of all ranks, one after another.
template <class Value>
std::vector<Value> gathered(comm::Communicator& world, const std::vector<Value>& own) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  std::vector<Value> all;
  for (const auto& theirs : world.all_gather_bytes({bytes, own.size() * sizeof(Value)})) {
    const std::size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(Value));
    if (!theirs.empty()) std::memcpy(all.data() + before, theirs.data(), theirs.size());
  }
  return all;
}

}  // namespace

parallel::HostMicrobatch random_batch(const model::ModelConfig& config, std::int64_t sequences,
                                      bool documents) {
  data::Batch batch{.sequences = sequences, .length = config.sequence};
  const RandomKey key{1, Purpose::sample_order, 0};
  const std::int64_t tokens = sequences * config.sequence;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto token = [&](std::int64_t place) {
      return static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(place)) %
                                       static_cast<std::uint64_t>(config.vocabulary));
    };
    batch.inputs.push_back(token(i));
    batch.targets.push_back(token(i + 1));
    batch.weights.push_back(1);
    batch.positions.push_back(static_cast<std::int32_t>(i % config.sequence));
  }
  if (documents) batch.documents.resize(static_cast<std::size_t>(tokens));
  for (std::int64_t i = 0; i < sequences; ++i) batch.samples.push_back(i);
  return parallel::HostMicrobatch(std::move(batch));
}

parallel::ReplicaOptions one_rank_options(bool host, DType compute, std::int64_t sequences,
                                          model::Recompute recompute) {
  parallel::ReplicaOptions options;
  options.stage = {.sequences = sequences,
                   .recompute = recompute,
                   .exact_gelu = host,
                   .products_on_gpu = !host,
                   .compute = compute,
                   .reads_masters = host};
  options.seed = 1;
  return options;
}

std::vector<TimedStep> time_steps(const model::Transformer& model, parallel::ReplicaOptions options,
                                  comm::Grid& grid, device::Device& device, int warm_up, int steps,
                                  double most_seconds, bool documents) {
  device::MemoryLedger ledger(device);
  Recorder recorder;
  TimedOps* timed = nullptr;
  options.graphs = options.trace = false;  // operations are seen one by one
  options.watchdog = nullptr;
  options.make_ops = [&, make = options.make_ops](device::MemoryLedger& memory, int threads,
                                                  bool reproducible) {
    auto own = std::make_unique<TimedOps>(make ? make(memory, threads, reproducible)
                                               : ops::make_cpu_ops(threads, &memory, reproducible),
                                          device);
    timed = own.get();
    return own;
  };
  const std::vector<parallel::HostMicrobatch> batches(
      static_cast<std::size_t>(options.stage.micro_batches),
      random_batch(model.config(), options.stage.sequences, documents));
  parallel::Replica replica(model, options, grid, recorder, ledger);
  replica.initialize();
  replica.settle_choices(documents);
  std::vector<TimedStep> all;
  const auto first = Clock::now();
  for (int step = 0; step < warm_up + steps; ++step) {
    // The same number on every rank, whatever its clock.
    if (!all.empty() && !grid.world().all_agree(seconds_since(first) < most_seconds)) break;
    if (step >= warm_up) timed->start();
    const auto begin = Clock::now();
    const parallel::StepSums sums = replica.backward(batches);
    replica.update(1e-4, step, optim::clip_factor(sums.gradient_norm, 1.0));
    replica.wait();
    const double seconds = seconds_since(begin);
    if (step >= warm_up) all.push_back({timed->finish(), seconds});
  }
  return all;
}

std::vector<MeasuredWork> measured_works(comm::Communicator& world,
                                         const std::vector<TimedStep>& steps) {
  using Key = decltype(Work().key());
  std::map<Key, std::pair<Work, std::vector<double>>> calls;
  for (const TimedStep& step : steps) {
    for (const TimedCall& call : step.calls) {
      auto& [work, seconds] = calls[call.work.key()];
      work = call.work;
      seconds.push_back(call.seconds);
    }
  }
  struct Sums {
    Work work;
    double calls = 0, seconds = 0, spread = 0;  // spread: in seconds
  };
  std::vector<Sums> own;
  for (const auto& [key, each] : calls) {
    const auto& [work, seconds] = each;
    const auto count = static_cast<double>(seconds.size());
    const double sum = count * std::max(report::quantile(seconds, 0.5), clock_seconds);
    own.push_back(
        {.work = work, .calls = count, .seconds = sum, .spread = sum * spread_of(seconds)});
  }
  std::map<Key, Sums> works;
  double all_seconds = 0;
  for (const Sums& theirs : gathered(world, own)) {
    Sums& sums = works[theirs.work.key()];
    sums.work = theirs.work;
    sums.calls += theirs.calls;
    sums.seconds += theirs.seconds;
    sums.spread += theirs.spread;
    all_seconds += theirs.seconds;
  }
  std::vector<MeasuredWork> all;
  for (const auto& [key, sums] : works) {
    all.push_back({.work = sums.work,
                   .seconds = sums.seconds / sums.calls,
                   .spread = sums.spread / sums.seconds,
                   .share = sums.seconds / all_seconds});
  }
  return all;
}

std::vector<MeasuredOperation> measure_collectives(comm::Grid& grid, comm::GroupKind kind,
                                                   const Placement& placement,
                                                   device::Device& device, std::int64_t largest) {
  constexpr int warm_up = 2, rounds = 8;
  constexpr double slow = 0.1;  // seconds: a slow link is known without larger messages
  comm::Communicator& group = grid.group(kind);
  const std::int64_t ranks = group.size();
  device::MemoryLedger ledger(device);
  device::Stream stream(device);
  const device::Buffer memory(ledger, device::Use::communication,
                              static_cast<std::size_t>(largest));
  std::vector<MeasuredOperation> all;
  for (std::int64_t bytes = 4096; bytes <= largest && (all.empty() || all.back().seconds < slow);
       bytes *= 8) {
    const std::int64_t part = bytes / static_cast<std::int64_t>(sizeof(float)) / ranks;
    const Tensor whole = memory.view(DType::f32, {part * ranks});
    const Tensor own = whole.slice(0, group.rank() * part, (group.rank() + 1) * part);
    for (const auto operation :
         {comm::OperationKind::all_reduce, comm::OperationKind::reduce_scatter,
          comm::OperationKind::all_gather}) {
      const auto start = [&] {
        if (operation == comm::OperationKind::all_reduce)
          return group.all_reduce(whole, comm::Reduction::sum, stream);
        if (operation == comm::OperationKind::all_gather)
          return group.all_gather(whole, own, stream);
        return group.reduce_scatter(own, whole, comm::Reduction::sum, stream);
      };
      std::vector<double> seconds;
      for (int round = 0; round < warm_up + rounds; ++round) {
        if (round == warm_up) grid.world().barrier();
        const auto begin = Clock::now();
        start().wait();
        device::wait_for(device);
        if (round >= warm_up) seconds.push_back(seconds_since(begin));
      }
      seconds = gathered(grid.world(), seconds);
      all.push_back(
          {.operation = {.kind = operation, .bytes = static_cast<std::int64_t>(whole.bytes())},
           .placement = placement,
           .seconds = report::quantile(seconds, 0.5),
           .spread = spread_of(seconds)});
    }
  }
  return all;
}

Interference measure_interference(comm::Grid& grid, comm::GroupKind kind, std::int64_t bytes,
                                  ops::Ops& ops, device::Device& device) {
  constexpr double most = 20;  // hardly anything is done meanwhile
  comm::Communicator& group = grid.group(kind);
  device::MemoryLedger ledger(device);
  device::Stream stream(device);
  const std::int64_t n = device.is_host() ? 256 : 2048;
  const device::Buffer memory(ledger, device::Use::workspace,
                              static_cast<std::size_t>(3 * n * n) * sizeof(float)),
      message(ledger, device::Use::communication, static_cast<std::size_t>(bytes));
  const Tensor all = memory.view(DType::f32, {3 * n, n});
  fill_with_noise(ops, device, ledger, all);
  const Tensor data = message.view(DType::f32, {bytes / static_cast<std::int64_t>(sizeof(float))});
  const auto seconds_of = [&](const auto& work) {
    grid.world().barrier();
    const auto begin = Clock::now();
    work();
    device::wait_for(device);
    return seconds_since(begin);
  };
  const auto compute = [&] {
    for (int product = 0; product < 4; ++product) {
      ops.matmul(all.slice(0, 0, n), all.slice(0, n, 2 * n), all.slice(0, 2 * n, 3 * n), {});
    }
    device::wait_for(device);
  };
  comm::Progress progress({&stream});  // as in a run
  const auto reduce = [&] {
    device::Event event = group.all_reduce(data, comm::Reduction::sum, stream);
    progress.wake();
    return event;
  };
  const auto alone = [&] { return seconds_of([&] { reduce().wait(); }); };
  alone();
  const double first = std::ranges::max(gathered(grid.world(), std::vector<double>{alone()}));
  const int rounds = std::clamp(static_cast<int>(0.2 / first), 3, 7);
  std::vector<double> slowdowns, stretches;
  for (int round = 0; round < rounds; ++round) {
    const double message_seconds = alone();
    int computed = 0;
    double beside = 0;
    seconds_of([&] {
      const auto begin = Clock::now();
      const device::Event event = reduce();
      for (; !event.done(); ++computed) compute();
      beside = seconds_since(begin);
      event.wait();  // rethrows what went wrong
    });
    const double apart = seconds_of([&] {
      for (int i = 0; i < computed; ++i) compute();
    });
    // Without a product either the message had ended first or it held the core.
    const double without = beside < message_seconds / 2 ? 1.0 : most;
    slowdowns.push_back(computed == 0 ? without : std::clamp(beside / apart, 1.0, most));
    stretches.push_back(std::clamp(beside / message_seconds, 1.0, most));
  }
  return {report::quantile(gathered(grid.world(), slowdowns), 0.5),
          report::quantile(gathered(grid.world(), stretches), 0.5)};
}

double measure_launch(ops::Ops& ops, device::Device& device) {
  constexpr int calls = 200;
  device::MemoryLedger ledger(device);
  const device::Buffer memory(ledger, device::Use::workspace, 64);
  const Tensor few = memory.view(DType::f32, {1, 16});
  double seconds = 0;
  for (int round = 0; round < 2; ++round) {
    device::wait_for(device);
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) ops.fill(few, 0);
    seconds = seconds_since(begin) / calls;
  }
  device::wait_for(device);
  return seconds;
}

double measure_launch(comm::Communicator& group, device::Device& device) {
  constexpr int calls = 20;
  device::MemoryLedger ledger(device);
  device::Stream stream(device);
  const device::Buffer memory(ledger, device::Use::communication, 64);
  const Tensor few = memory.view(DType::f32, {16});
  double seconds = 0;
  for (int round = 0; round < 2; ++round) {
    device::wait_for(device);
    std::vector<device::Event> events;
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      events.push_back(group.all_reduce(few, comm::Reduction::sum, stream));
    }
    seconds = seconds_since(begin) / calls;
    for (const device::Event& event : events) event.wait();
  }
  device::wait_for(device);
  return seconds;
}

}  // namespace trireme::plan
