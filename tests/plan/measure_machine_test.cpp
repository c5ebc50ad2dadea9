// Constants that are fitted to measurements made with known ones; and the steps that are timed,
// beside their traces.
#include "trireme/plan/measure_machine.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/comm/communicator.hpp"
#include "trireme/plan/fit_machine.hpp"
#include "trireme/plan/waiting_ops.hpp"

#include "machines.hpp"
#include "unfolded.hpp"

namespace trireme::plan::test {
namespace {

using WorkKind = Work::Kind;

/// Works of each kind, with the times that `machine` gives them.
std::vector<MeasuredWork> works_on(const Machine& machine) {
  std::vector<MeasuredWork> all;
  const auto add = [&](const Work& work) {
    all.push_back({.work = work, .seconds = machine.seconds(work), .share = 1});
  };
  for (const std::int64_t m : {32, 256, 2048}) {
    for (const std::int64_t n : {64, 512, 4096}) {
      for (const std::int64_t k : {128, 1024}) {
        add({.kind = WorkKind::product,
             .m = m,
             .n = n,
             .k = k,
             .bytes = 4 * (m * n + n * k + m * k)});
      }
    }
  }
  for (const WorkKind kind : {WorkKind::attention, WorkKind::attention_backward}) {
    for (const std::int64_t tokens : {128, 512, 1024}) {
      add({.kind = kind, .m = tokens, .n = tokens, .k = 64, .count = 12, .causal = true});
    }
  }
  for (const WorkKind kind : {WorkKind::memory, WorkKind::update}) {
    for (std::int64_t bytes = 4096; bytes < 1 << 28; bytes *= 8) {
      add({.kind = kind, .bytes = bytes});
    }
  }
  for (MeasuredWork& each : all) each.share = 1 / static_cast<double>(all.size());
  return all;
}

Machine known_machine() {
  Machine truth = cpu_machine();
  truth.device.operation_us = 20;
  truth.products = {
      .fp32_tflops = 0.1, .efficiency = 0.8, .rows_half = 30, .columns_half = 9, .depth_half = 15};
  truth.attention = {.forward_efficiency = 0.3, .backward_efficiency = 0.25, .rows_half = 90};
  truth.memory = {.gb_per_s = 20, .efficiency = 0.5, .update_efficiency = 0.6};
  return truth;
}

TEST(MeasuredMachine, HasTheConstantsThatItsWorksHave) {
  const Machine truth = known_machine();
  const std::vector<MeasuredWork> works = works_on(truth);
  Machine start = cpu_machine();
  start.memory.gb_per_s = 20;
  const Machine fitted = fit_works(start, works);
  EXPECT_LT(mean_error(fitted, works), 0.01);
  // The peak is that of the fastest product, so the efficiency is relative to it.
  // fit() holds constants weakly to where they begin: times are exact to 1 %, constants less so.
  EXPECT_NEAR(fitted.products.fp32_tflops * fitted.products.efficiency, 0.08, 0.004);
  EXPECT_NEAR(fitted.products.rows_half, 30, 3);
  EXPECT_NEAR(fitted.products.columns_half, 9, 2);
  EXPECT_NEAR(fitted.attention.rows_half, 90, 6);
  EXPECT_NEAR(fitted.memory.efficiency * fitted.memory.gb_per_s, 10, 0.3);
  EXPECT_NEAR(fitted.memory.update_efficiency * fitted.memory.gb_per_s, 12, 0.3);
  EXPECT_NEAR(fitted.device.operation_us, 20, 1);
  // Works that were measured are taken as they were.
  for (const MeasuredWork& each : works) EXPECT_EQ(fitted.seconds(each.work), each.seconds);
}

/// A slow type whose products take no notice of their shape changes nothing but its own peak.
TEST(MeasuredMachine, HasTheShapesOfItsFastestType) {
  Machine truth = known_machine();
  truth.products.bf16_tflops = 0.2;
  std::vector<MeasuredWork> works, slow_works;
  for (const MeasuredWork& each : works_on(truth)) {
    MeasuredWork fast = each;
    fast.work.type = DType::bf16;
    fast.seconds = truth.seconds(fast.work);
    works.push_back(fast);
    if (each.work.kind != WorkKind::product) continue;
    MeasuredWork slow = each;
    slow.seconds = each.work.flops() / 0.02e12;
    slow_works.push_back(slow);
  }
  const std::vector<MeasuredWork> fast_works = works;
  works.insert(works.end(), slow_works.begin(), slow_works.end());
  Machine start = cpu_machine();
  start.memory.gb_per_s = 20;
  const Machine fitted = fit_works(start, works);
  Machine alone = fit_works(start, fast_works);
  alone.products.fp32_tflops = fitted.products.fp32_tflops;
  alone.measured = fitted.measured;
  EXPECT_EQ(fitted.to_toml(), alone.to_toml());
  double error = 0;
  for (const MeasuredWork& each : fast_works) {
    error += std::abs(std::log(fitted.formula_seconds(each.work) / each.seconds)) /
             static_cast<double>(fast_works.size());
  }
  EXPECT_LT(error, 0.01);
  // The peak of the slow type makes the mean of its logarithms 0, but for what does not scale with
  // it: fixed times.
  double mean = 0;
  for (const MeasuredWork& each : slow_works) {
    mean += std::log(fitted.formula_seconds(each.work) / each.seconds) /
            static_cast<double>(slow_works.size());
  }
  EXPECT_NEAR(mean, 0, 0.02);
}

TEST(MeasuredMachine, HasTheLinksThatItsCollectivesHave) {
  for (const Placement& placement : {Placement{.ranks = 4}, Placement{4, 4, 2}}) {
    Machine truth = cpu_machine();
    truth.links.collectives = "direct";
    truth.node = {.latency_us = 12, .gb_per_s = 9};
    truth.network = {.latency_us = 40, .gb_per_s = 1.5};
    std::vector<MeasuredOperation> all;
    for (const auto kind : {comm::OperationKind::all_reduce, comm::OperationKind::all_gather}) {
      for (std::int64_t bytes = 4096; bytes <= 1 << 24; bytes *= 8) {
        MeasuredOperation each{.operation = {.kind = kind, .bytes = bytes}, .placement = placement};
        each.seconds = truth.seconds(each.operation, placement);
        all.push_back(each);
      }
    }
    Machine start = truth;
    Machine::Link& link = placement.nodes > 1 ? start.network : start.node;
    link = {};
    const Machine fitted = fit_links(start, all);
    const Machine::Link& found = placement.nodes > 1 ? fitted.network : fitted.node;
    const Machine::Link& expected = placement.nodes > 1 ? truth.network : truth.node;
    EXPECT_NEAR(found.latency_us / expected.latency_us, 1, 0.02);
    EXPECT_NEAR(found.gb_per_s / expected.gb_per_s, 1, 0.02);
    EXPECT_LT(mean_error(fitted, all), 0.01);
  }
}

TEST(MeasuredMachine, CountsTheHostsTimeBetweenOperations) {
  TimedStep step{.seconds = 1e-3};
  for (int i = 0; i < 10; ++i) {
    step.calls.push_back({.seconds = 50e-6, .before = i == 0 ? 0 : i == 5 ? 8e-6 : 4e-6});
  }
  TimedStep disturbed = step;
  disturbed.calls[3].before = 300e-6;
  Machine machine = cpu_machine();
  machine.device.operation_us = 6;
  machine.measured = OperationTable({{Work(), 50e-6}});
  const Machine several = fit_host(machine, {step, step, disturbed}, false),
                alone = fit_host(machine, {step, step, disturbed}, true);
  EXPECT_NEAR(several.device.operation_us, 10, 1e-9);
  EXPECT_NEAR(alone.device.operation_us, 10, 1e-9);  // (8·4 + 8)/10
  EXPECT_NEAR(several.measured.times().front().seconds, 54e-6, 1e-12);
  EXPECT_EQ(several.device.step_ms, 0);
  EXPECT_NEAR(alone.device.step_ms, 0.46, 1e-9);  // 1 − 10·0.05 − 0.04
}

model::ModelConfig small() {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.sequence = 16;
  config.vocabulary = 64;
  config.resolve();
  return config;
}

/// How often each work is computed.
using Counts = std::map<decltype(Work().key()), int>;

TEST(TimedSteps, MakeTheCallsOfTheirTrace) {
  const model::Transformer model(small()), other(small());
  device::Device& device = device::host_device();
  device::MemoryLedger ledger(device);
  const parallel::ReplicaOptions options =
      one_rank_options(true, DType::f32, 3, model::Recompute::none);
  comm::Grid grid({}, 0, ledger, {});
  const auto steps = time_steps(model, options, grid, device, 1, 2, 60);
  ASSERT_EQ(steps.size(), 2U);
  const Trace trace = unfolded(trace_step(other, options, {}, 0, true));
  Counts planned;
  for (const Instruction& each : trace.instructions) {
    if (each.kind != Instruction::Kind::compute) continue;
    ++planned[trace.works[static_cast<std::size_t>(each.index)].key()];
  }
  for (const TimedStep& step : steps) {
    Counts timed;
    for (const TimedCall& call : step.calls) {
      ++timed[call.work.key()];
      EXPECT_GT(call.seconds, 0);
    }
    EXPECT_EQ(timed, planned);
    double own = 0;
    for (const TimedCall& call : step.calls) own += call.seconds + call.before;
    EXPECT_LE(own, step.seconds);
  }
  // Each work once, with its share of the time.
  const auto world = comm::make_self_communicator();
  const auto works = measured_works(*world, steps);
  EXPECT_EQ(works.size(), planned.size());
  double shares = 0;
  for (const MeasuredWork& each : works) shares += each.share;
  EXPECT_GT(shares, 0.3);
  // A limit of time that has passed leaves one step.
  const model::Transformer third(small());
  EXPECT_EQ(time_steps(third, options, grid, device, 0, 5, 0).size(), 1U);
}

/// Each operation has its median; work whose clock did not move still takes time.
TEST(MeasuredWorks, AreMeansOfMedians) {
  const Work work{.name = std::string_view("add"), .bytes = 100},
      other{.name = std::string_view("fill"), .bytes = 100},
      none{.name = std::string_view("fill"), .bytes = 200};
  std::vector<TimedStep> steps(1);
  for (const double seconds : {1.0, 2.0, 3.0, 4.0, 90.0}) {
    steps[0].calls.push_back({.work = work, .seconds = seconds});
  }
  steps[0].calls.push_back({.work = other, .seconds = 9});
  steps[0].calls.push_back({.work = none, .seconds = 0});
  const auto world = comm::make_self_communicator();
  const auto works = measured_works(*world, steps);
  ASSERT_EQ(works.size(), 3U);
  EXPECT_EQ(works[0].seconds, 3);
  EXPECT_EQ(works[1].seconds, 9);
  EXPECT_NEAR(works[0].share + works[1].share + works[2].share, 1, 1e-12);
  EXPECT_GT(works[0].spread, 0.4);
  EXPECT_GT(works[2].seconds, 0);
}

TEST(WaitingOps, TakeAsLongAsTheMachineSays) {
  Machine machine = cpu_machine();
  machine.memory = {.gb_per_s = 1};
  WaitingOps ops(machine);
  std::vector<float> numbers(1000);
  const Tensor x(numbers.data(), DType::f32, {1000});
  machine.device.operation_us = 100 - 4;  // and 4 for 4,000 bytes
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 500; ++i) ops.fill(x, 1);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GT(seconds, 0.0497);  // it may end 0.2 ms early
  EXPECT_LT(seconds, 0.5);
  EXPECT_EQ(numbers[0], 0);
}

}  // namespace
}  // namespace trireme::plan::test
