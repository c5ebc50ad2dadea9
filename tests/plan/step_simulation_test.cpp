// The simulator against closed forms; and predictions that do not depend on how many equivalent
// ranks are simulated.
#include "trireme/plan/step_simulation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/step_time.hpp"
#include "trireme/schedule/messages.hpp"
#include "trireme/schedule/schedule.hpp"

#include "layouts.hpp"
#include "machines.hpp"
#include "unfolded.hpp"

namespace trireme::plan::test {
namespace {

using Kind = Instruction::Kind;
using testing::HasSubstr;

/// Without costs beside those of sizes: n seconds of computation are n·10¹² bytes, n seconds of a
/// message n·10¹¹.
Machine plain_machine(const std::string& type = "cpu") {
  Machine machine = gpu_machine();
  machine.device = {.type = type};
  machine.node.latency_us = machine.network.latency_us = 0;
  return machine;
}
constexpr std::int64_t second_of_work = 1'000'000'000'000, second_of_message = 100'000'000'000;

/// Builds a trace call by call.
struct Calls {
  Trace trace;
  Calls& compute(double seconds) {
    trace.works.push_back({.bytes = static_cast<std::int64_t>(seconds * second_of_work)});
    trace.instructions.push_back({Kind::compute, static_cast<int>(trace.works.size()) - 1});
    return *this;
  }
  int start(const StreamOperation& operation) {
    trace.operations.push_back(operation);
    const int index = static_cast<int>(trace.operations.size()) - 1;
    trace.instructions.push_back({Kind::start, index});
    return index;
  }
  /// Of an all-reduce on the data axis that takes two ranks so long.
  int all_reduce(double seconds) {
    return start({.planned = {.kind = comm::OperationKind::all_reduce,
                              .bytes = static_cast<std::int64_t>(seconds * second_of_message)},
                  .channel = {comm::GroupKind::data}});
  }
  int message(int peer, double seconds, bool send, comm::Direction direction, int stream) {
    return start(
        {.planned = {.messages = {{peer, static_cast<std::int64_t>(seconds * second_of_message),
                                   send}}},
         .channel = {comm::GroupKind::pipeline, direction},
         .stream = stream});
  }
  Calls& wait(int operation) {
    trace.instructions.push_back({Kind::wait, operation});
    return *this;
  }
};

std::size_t each_rank(int rank) { return static_cast<std::size_t>(rank); }

double seconds_of(const comm::GridShape& shape, const std::vector<Calls>& ranks,
                  const Machine& machine) {
  std::vector<RankClass> classes;
  for (const Calls& calls : ranks) {
    classes.push_back({static_cast<int>(classes.size()), calls.trace});
  }
  return simulate(shape, classes, each_rank, machine).seconds;
}

TEST(StepSimulation, AddsUpComputation) {
  EXPECT_DOUBLE_EQ(
      seconds_of(shape_of(1, 1, 1), {Calls().compute(1).compute(2.5)}, plain_machine()), 3.5);
}

TEST(StepSimulation, HidesLaunchesBehindComputationOnGpusAlone) {
  Machine machine = plain_machine("gpu");
  machine.device.launch_us = 1e6;
  // The host needs a second for each call: the short ones wait for it, the long one hides two.
  Calls calls = Calls().compute(0.5).compute(5).compute(0.5).compute(0.5);
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 1, 1), {calls}, machine), 1 + 0.5 + 0.5 + 5 + 0.5 + 0.5);
  machine.device.type = "cpu";
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 1, 1), {calls}, machine), 6.5);
}

// Of a program whose softmax wants a multiple of four heads × sequences: more launches, and scores
// that are moved, both twice in backward and three times with other numbers.
TEST(StepSimulation, AttentionThatIsNotFusedIsSeveralOperations) {
  Machine machine = plain_machine("gpu");
  machine.device.launch_us = 1e5;
  const auto seconds = [&](Work::Kind kind, std::int64_t heads) {
    Calls calls;
    calls.trace.works.push_back({.kind = kind, .m = 1000, .n = 1000, .k = 1, .count = heads});
    calls.trace.instructions.push_back({Kind::compute, 0});
    return seconds_of(shape_of(1, 1, 1), {calls}, machine);
  };
  EXPECT_NEAR(seconds(Work::Kind::attention, 6), 0.1, 1e-4);
  machine.attention = {.fused = false,
                       .score_bytes = 250'000,  // a second for four heads
                       .launches = 5,
                       .softmax_multiple = 4,
                       .slow_factor = 3};
  EXPECT_NEAR(seconds(Work::Kind::attention, 4), 0.5 + 1, 1e-4);
  EXPECT_NEAR(seconds(Work::Kind::attention_backward, 4), 2 * (0.5 + 1), 1e-4);
  EXPECT_NEAR(seconds(Work::Kind::attention, 6), 3 * (0.5 + 1.5), 1e-4);
  EXPECT_NEAR(seconds(Work::Kind::attention_backward, 6), 2 * 3 * (0.5 + 1.5), 1e-4);
}

// Of a program whose loss is not fused: more launches for the gradient of logits alone.
TEST(StepSimulation, ALossThatIsNotFusedIsSeveralOperations) {
  Machine machine = plain_machine("gpu");
  machine.device.launch_us = 1e5;
  machine.loss.launches = 7;
  const auto seconds = [&](bool loss) {
    Calls calls;
    calls.trace.works.push_back({.loss = loss});
    calls.trace.instructions.push_back({Kind::compute, 0});
    return seconds_of(shape_of(1, 1, 1), {calls}, machine);
  };
  EXPECT_NEAR(seconds(false), 0.1, 1e-4);
  EXPECT_NEAR(seconds(true), 0.7, 1e-4);
}

// Thakur, Rabenseifner and Gropp (2005): 2(n−1)(α + S/(n·β)) for a ring's all-reduce.
TEST(StepSimulation, HasTheTimeOfARing) {
  Machine machine = plain_machine();
  machine.node.latency_us = 1e6;
  machine.ranks_per_node = 8;
  for (const int n : {2, 3, 8}) {
    std::vector<Calls> ranks(static_cast<std::size_t>(n));
    for (Calls& calls : ranks) calls.wait(calls.all_reduce(7));
    EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, n, 1), ranks, machine), 2 * (n - 1) * (1 + 7.0 / n))
        << n;
  }
}

// Four nodes of two: each node's link carries what two rings, of one rank each, send.
TEST(StepSimulation, SharesANodesLinkAmongItsGroups) {
  Machine machine = plain_machine();
  machine.ranks_per_node = 2;
  machine.network.gb_per_s = 100;  // as a rank inside a node: shared by two it is half
  std::vector<Calls> apart(8), together(8);
  for (Calls& calls : apart) calls.wait(calls.all_reduce(4));
  // Tensor 2 × data 4: two data groups on each node.
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(2, 4, 1), apart, machine), 2 * 2 * 0.75 * 4);
  // Data 8: one group, of which each node has two ranks.
  for (Calls& calls : together) calls.wait(calls.all_reduce(4));
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 8, 1), together, machine), 2 * 0.875 * 4);
  // Where each rank sends to every other, each of two sends six of eight parts to other nodes.
  machine.links.collectives = "direct";
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 8, 1), together, machine), 2 * 2 * 0.75 * 4);
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(2, 4, 1), apart, machine), 2 * 2 * 0.75 * 4);
}

TEST(StepSimulation, WaitsForTheLastOfAGroup) {
  std::vector<Calls> ranks(2);
  ranks[0].compute(1);
  ranks[1].compute(3);
  for (Calls& calls : ranks) calls.wait(calls.all_reduce(2));
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 2, 1), ranks, plain_machine()), 5);
}

TEST(StepSimulation, OverlapsCommunicationWithComputation) {
  const auto run = [](double message, const Machine& machine, bool overlap = true) {
    std::vector<Calls> ranks(2);
    for (Calls& calls : ranks) {
      calls.trace.overlap = overlap;
      const int started = calls.all_reduce(message);
      calls.compute(10).wait(started);
    }
    return seconds_of(shape_of(1, 2, 1), ranks, machine);
  };
  Machine machine = plain_machine();
  EXPECT_DOUBLE_EQ(run(4, machine), 10);
  EXPECT_DOUBLE_EQ(run(13, machine), 13);  // 3 of them exposed
  EXPECT_DOUBLE_EQ(run(4, machine, false), 14);
  // While 4 s of it are under way, 10 s of computation advance by 4/1.6 s.
  machine.node.slowdown = 1.6;
  EXPECT_DOUBLE_EQ(run(4, machine), 4 + (10 - 4 / 1.6));
  EXPECT_DOUBLE_EQ(run(20, machine), 20);
  // Beside computation 4 s become 8, while which it advances by 5 s; 10 s of it end after 16, when
  // 8 of 20 are done.
  machine.node.stretch = 2;
  EXPECT_DOUBLE_EQ(run(4, machine), 8 + (10 - 8 / 1.6));
  EXPECT_DOUBLE_EQ(run(20, machine), 16 + 12);
  machine.node.stretch = 1;
  machine.links.overlap = false;
  EXPECT_DOUBLE_EQ(run(4, machine), 14);
  // On two nodes messages take twice as long, and slow computation as the network does.
  machine.links.overlap = true;
  machine.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(run(2, machine), 10);
  machine.network.slowdown = 1.25;
  EXPECT_DOUBLE_EQ(run(2, machine), 4 + (10 - 4 / 1.25));
}

// The longer of two computations holds a message up.
TEST(StepSimulation, AMessageIsSlowWhileOneOfItsRanksComputes) {
  Machine machine = plain_machine();
  machine.node.stretch = 4;
  std::vector<Calls> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    Calls& calls = ranks[static_cast<std::size_t>(rank)];
    const int message = calls.message(1 - rank, 3, rank == 0, comm::Direction::activations, 0);
    calls.compute(rank == 0 ? 2 : 8).wait(message);
  }
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 1, 2), ranks, machine), 8 + 1);
}

TEST(StepSimulation, AMessageSlowsComputationByItsLink) {
  Machine machine = plain_machine();
  machine.node.slowdown = 1.25;
  machine.network.slowdown = 1.6;
  const auto run = [&] {
    std::vector<Calls> ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      Calls& calls = ranks[static_cast<std::size_t>(rank)];
      const int message = calls.message(1 - rank, 2, rank == 0, comm::Direction::activations, 0);
      calls.compute(10).wait(message);
    }
    return seconds_of(shape_of(1, 1, 2), ranks, machine);
  };
  EXPECT_DOUBLE_EQ(run(), 2 + (10 - 2 / 1.25));
  machine.ranks_per_node = 1;
  EXPECT_DOUBLE_EQ(run(), 4 + (10 - 4 / 1.6));
}

/// The calls of a pipeline stage as the engine makes them, with one virtual stage.
Calls stage_calls(const schedule::StageSteps& steps, double forward, double backward,
                  double message) {
  Calls calls;
  std::map<std::pair<bool, int>, int> arrives;  // by gradient and slot
  std::vector<std::pair<int, int>> outgoing;
  for (const schedule::Step& step : steps.steps) {
    if (step.kind == schedule::Step::Kind::compute) {
      const bool is_forward = step.action.kind == schedule::Kind::forward;
      if (step.input_slot >= 0) calls.wait(arrives.at({!is_forward, step.input_slot}));
      calls.compute(is_forward ? forward : backward);
      continue;
    }
    const auto direction =
        step.is_gradient() ? comm::Direction::gradients : comm::Direction::activations;
    const int stream = (step.is_gradient() ? 2 : 0) + (step.is_receive() ? 1 : 0);
    const int started =
        calls.message(step.peer_stage, message, !step.is_receive(), direction, stream);
    if (step.is_receive()) arrives[{step.is_gradient(), step.slot}] = started;
  }
  return calls;
}

// Narayanan et al. (2021): with p stages and m micro-batches a step of equal stages takes
// (m + p − 1)·(t_f + t_b).
TEST(StepSimulation, HasTheBubbleOfAPipeline) {
  for (const char* name : {"1f1b", "gpipe"}) {
    for (const int stages : {2, 4}) {
      for (const int micro_batches : {4, 8}) {
        std::vector<Calls> ranks;
        const auto all =
            schedule::add_messages(schedule::make_schedule(name, stages, micro_batches, 1));
        for (const auto& steps : all) ranks.push_back(stage_calls(steps, 1, 2, 0));
        EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 1, stages), ranks, plain_machine()),
                         (micro_batches + stages - 1) * 3)
            << name << " " << stages << " " << micro_batches;
      }
    }
  }
}

// A message's time is on the critical path of the first and the last micro-batch.
TEST(StepSimulation, AddsMessagesBetweenStages) {
  std::vector<Calls> ranks;
  for (const auto& steps : schedule::add_messages(schedule::make_schedule("gpipe", 2, 1, 1))) {
    ranks.push_back(stage_calls(steps, 1, 2, 0.5));
  }
  EXPECT_DOUBLE_EQ(seconds_of(shape_of(1, 1, 2), ranks, plain_machine()), 6 + 2 * 0.5);
}

TEST(StepSimulation, RefusesProgramsThatDoNotAgree) {
  const auto refusal = [](const std::vector<Calls>& ranks, const comm::GridShape& shape) {
    try {
      seconds_of(shape, ranks, plain_machine());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  std::vector<Calls> ranks(2);
  ranks[0].wait(ranks[0].all_reduce(1));
  EXPECT_THAT(refusal(ranks, shape_of(1, 2, 1)), HasSubstr("1 of 2 sides take part"));
  ranks[1].wait(ranks[1].all_reduce(2));
  EXPECT_THAT(refusal(ranks, shape_of(1, 2, 1)), HasSubstr("rank 1 has all_reduce of"));
  // Each waits for the other's message before it sends its own.
  std::vector<Calls> crossed(2);
  for (int rank = 0; rank < 2; ++rank) {
    Calls& calls = crossed[static_cast<std::size_t>(rank)];
    calls.wait(calls.message(1 - rank, 1, false, comm::Direction::activations, 0));
    calls.wait(calls.message(1 - rank, 1, true, comm::Direction::activations, 0));
  }
  EXPECT_THAT(refusal(crossed, shape_of(1, 1, 2)), HasSubstr("forever"));
}

TEST(StepTimes, AreThoseOfAllRanksSimulatedOneByOne) {
  const model::Transformer model(even_model());
  for (const Layout& layout :
       {Layout{1, 1, 1, 0, false}, Layout{2, 2, 2, 0, false}, Layout{2, 4, 1, 1, true},
        Layout{1, 4, 2, 2, false}, Layout{2, 2, 2, 3, true}}) {
    const comm::GridShape shape = shape_of(layout.tensor, layout.data, layout.pipeline);
    const parallel::ReplicaOptions options = options_of(layout);
    for (const Machine& machine : {cpu_machine(), gpu_machine()}) {
      const StageClasses stages = trace_stages(model, options, shape, machine.on_host());
      const double predicted = predict_step(model, options, shape, machine).seconds;
      std::vector<RankClass> alike, all;
      for (int rank = 0; rank < shape.size(); ++rank) {
        alike.push_back({rank, stages.classes[stages.class_of(rank)].trace});
        all.push_back({rank, trace_step(model, options, shape, rank, machine.on_host())});
      }
      const std::string what = shape.to_string() + " on " + machine.name;
      // Sections add the same times in another order: a thousand additions, each off by 2⁻⁵³ at
      // most.
      EXPECT_NEAR(simulate(shape, alike, each_rank, machine).seconds / predicted, 1, 1e-12) << what;
      // Ranks of a stage differ in how their shards are cut into ranges, which weighs in so small a
      // model.
      EXPECT_NEAR(simulate(shape, all, each_rank, machine).seconds / predicted, 1, 0.02) << what;
    }
  }
}

// Three heads over two tensor ranks: one has two of them, whichever rank that is.
TEST(StepTimes, AreOfEachKindOfTensorRank) {
  model::ModelConfig config = even_model();
  config.width = 48;
  config.heads = config.kv_heads = 3;
  config.hidden = 0;
  config.resolve();
  const model::Transformer model(config);
  const StageClasses stages =
      trace_stages(model, options_of({2, 1, 1, 0, false}), shape_of(2, 1, 1), true);
  std::vector<std::int64_t> heads;
  for (const RankClass& each : stages.classes) {
    std::int64_t most = 0;
    for (const Work& work : each.trace.works) {
      if (work.kind == Work::Kind::attention) most = std::max(most, work.count / 2);  // sequences
    }
    heads.push_back(most);
  }
  EXPECT_THAT(heads, testing::UnorderedElementsAre(1, 2));
  EXPECT_EQ(stages.class_of(0), 0);
  EXPECT_EQ(stages.class_of(1), 1);
}

// Eight tensor ranks share two key/value heads: the first rank, which holds what is not split,
// makes its key/value group unlike the others.
TEST(StepTimes, AreOfRanksThatShareHeads) {
  model::ModelConfig config = even_model();
  config.heads = 8;
  config.kv_heads = 2;
  config.bias = false;
  config.activation = "swiglu";
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.resolve();
  const model::Transformer model(config);
  comm::GridShape shape = shape_of(8, 2, 1);
  shape.kv = 4;
  const parallel::ReplicaOptions options = options_of({8, 2, 1, 1, true});
  const StageClasses stages = trace_stages(model, options, shape, false);
  EXPECT_LT(stages.classes.size(), 8);
  std::vector<RankClass> alike;
  for (int rank = 0; rank < shape.size(); ++rank) {
    alike.push_back({rank, stages.classes[stages.class_of(rank)].trace});
  }
  EXPECT_NEAR(simulate(shape, alike, each_rank, gpu_machine()).seconds /
                  predict_step(model, options, shape, gpu_machine()).seconds,
              1, 1e-12);
}

// What is passed over in sections is what their calls take one by one, whether the host is behind
// or ahead, and whether messages slow down what is computed meanwhile.
TEST(StepTimes, AreThoseOfStepsWithoutSections) {
  const model::Transformer model(even_model());
  int number = 0;
  for (const Layout& layout :
       {Layout{1, 1, 1, 0, false}, Layout{2, 1, 1, 0, true}, Layout{2, 2, 2, 1, true},
        Layout{4, 1, 4, 0, false}, Layout{2, 2, 2, 3, true}}) {
    const comm::GridShape shape = shape_of(layout.tensor, layout.data, layout.pipeline);
    for (const double launch : {0.0, 3.0, 80.0}) {
      for (const auto& [in_node, between] : {std::pair{1.0, 1.0}, {1.3, 1.0}, {1.0, 1.7}}) {
        Machine machine = number++ % 3 == 0 ? cpu_machine() : gpu_machine();
        machine.device.launch_us = launch;
        machine.node.slowdown = in_node;
        machine.network.slowdown = between;
        machine.node.stretch = in_node;
        StageClasses stages = trace_stages(model, options_of(layout), shape, machine.on_host());
        const auto times = simulate(shape, stages.classes, stages.class_of, machine);
        for (RankClass& each : stages.classes) {
          EXPECT_FALSE(each.trace.sections.empty());
          each.trace = unfolded(each.trace);
        }
        const auto one_by_one = simulate(shape, stages.classes, stages.class_of, machine);
        const std::string what =
            fmt::format("{} {} {} {}", shape.to_string(), launch, in_node, between);
        EXPECT_NEAR(times.seconds / one_by_one.seconds, 1, 1e-9) << what;
        for (std::size_t r = 0; r < times.ranks.size(); ++r) {
          EXPECT_NEAR(times.ranks[r].busy / one_by_one.ranks[r].busy, 1, 1e-9) << what;
          for (const auto& [part, seconds] : one_by_one.ranks[r].parts) {
            const auto found = times.ranks[r].parts.find(part);
            ASSERT_NE(found, times.ranks[r].parts.end()) << what << part;
            EXPECT_NEAR(found->second, seconds, 1e-9 * times.seconds) << what << part;
          }
        }
      }
    }
  }
}

TEST(StepTimes, HavePartsThatAddUpToTheStepOfTheLongestRank) {
  const model::Transformer model(even_model());
  const StepTimes times =
      predict_step(model, options_of({2, 2, 2, 1, true}), shape_of(2, 2, 2), gpu_machine());
  const RankTimes& longest = times.longest();
  double sum = 0;
  for (const auto& [part, seconds] : longest.parts) sum += seconds;
  EXPECT_NEAR(sum, longest.end, 1e-9 * longest.end);
}

// The products of a step: 6·N of every token for weights that enter products (Kaplan et al., 2020).
TEST(Traces, HaveTheProductsOfAStep) {
  const model::Transformer model(even_model());
  const Trace trace =
      unfolded(trace_step(model, options_of({1, 1, 1, 0, false}), shape_of(1, 1, 1), 0, true));
  double flops = 0;
  for (const Instruction& instruction : trace.instructions) {
    if (instruction.kind != Kind::compute) continue;
    const Work& work = trace.works[static_cast<std::size_t>(instruction.index)];
    if (work.kind == Work::Kind::product) flops += work.flops();
  }
  double weights = 0;
  for (const params::Parameter& row : model.table().rows()) {
    if (row.in_products) weights += static_cast<double>(row.shape.elements());
  }
  const double tokens = 4 * 2 * 32;
  EXPECT_DOUBLE_EQ(flops, 6 * weights * tokens);
}

// Of each of four micro-batches, whether tensor ranks sum its statistics or not.
TEST(Traces, HaveTheGradientOfLogitsOnce) {
  const model::Transformer model(even_model());
  for (const int tensor : {1, 2}) {
    const Trace trace = unfolded(
        trace_step(model, options_of({tensor, 1, 1, 0, false}), shape_of(tensor, 1, 1), 0, true));
    const auto gradients = std::ranges::count_if(trace.instructions, [&](const Instruction& each) {
      return each.kind == Kind::compute && trace.works[static_cast<std::size_t>(each.index)].loss;
    });
    EXPECT_EQ(gradients, 4) << tensor;
  }
}

}  // namespace
}  // namespace trireme::plan::test
