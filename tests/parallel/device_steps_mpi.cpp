// Steps on a simulated device: host waits, traces, and agreement of ranks on backend choices.
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

using testing::Contains;
using testing_support::SimulatedDevice;

std::vector<LayoutCase> layouts_of_world() {
  std::vector<LayoutCase> layouts(5);
  layouts[0].data = layouts[1].data = layouts[2].tensor = layouts[3].tensor = layouts[4].pipeline =
      world_size();
  layouts[1].zero = 3;
  layouts[3].sequence_parallel = true;
  return layouts;
}

/// One rank of a small model, ready to train.
struct Steps {
  Steps(const LayoutCase& layout, const RunSettings& settings, bool trace,
        MPI_Comm comm = MPI_COMM_WORLD)
      : config(testing_support::odd_model(true)),
        settings(settings),
        run(config, layout, stage_options(layout, settings), comm, settings.make_device, trace, {},
            settings.stochastic, settings.graphs) {
    run.replica.initialize();
    run.replica.begin_trace();
  }
  StepSums step() {
    auto batches = make_batches(config, run.layout, run.grid.coordinate(comm::Axis::data), number,
                                settings.global_batch);
    if (documents) {
      for (HostMicrobatch& batch : batches) batch = with_documents(batch);
    }
    const StepSums sums = run.replica.backward(batches);
    run.replica.update(1e-3, number++, optim::clip_factor(sums.gradient_norm, 1.0));
    return sums;
  }
  std::vector<Span> device_spans() const {
    std::vector<Span> spans;
    for (const Span& span : run.recorder.spans()) {
      if (span.stream == ops::TracedOps::device_stream) spans.push_back(span);
    }
    return spans;
  }
  /// The same tokens, with the second half of each sequence a separate document.
  static HostMicrobatch with_documents(const HostMicrobatch& batch) {
    const model::Microbatch& view = batch.view();
    const auto copy = [](auto& to, const Tensor& from) {
      using T = typename std::remove_reference_t<decltype(to)>::value_type;
      to.assign(from.as<T>(), from.as<T>() + from.elements());
    };
    data::Batch own{.sequences = view.sequences, .length = view.length};
    copy(own.inputs, view.inputs);
    copy(own.targets, view.targets);
    copy(own.weights, view.weights);
    copy(own.positions, view.positions);
    copy(own.samples, view.samples);
    for (std::int64_t i = 0; i < view.tokens(); ++i) {
      own.documents.push_back(i % view.length < view.length / 2 ? 0 : 1);
    }
    return HostMicrobatch(std::move(own));
  }
  model::ModelConfig config;
  RunSettings settings;
  LayoutRun run;
  std::int64_t number = 0;
  bool documents = false;
};

TEST(DeviceSteps, TheHostWaitsOnceInAStep) {
  for (const LayoutCase& layout : layouts_of_world()) {
    for (const bool trace : {false, true}) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        Steps steps(
            layout,
            {.reproducible = false, .make_device = make_simulated_device, .compute = compute},
            trace);
        auto& device = dynamic_cast<SimulatedDevice&>(*steps.run.device.device);
        steps.step();  // buffers grow
        for (int i = 0; i < 3; ++i) {
          const std::uint64_t before = device.waits();
          steps.step();
          EXPECT_EQ(device.waits() - before, 1U) << layout.to_string() << " trace " << trace;
        }
      }
    }
  }
}

TEST(DeviceSteps, WaitingOnceChangesNoBits) {
  for (const LayoutCase& layout : layouts_of_world()) {
    Steps device(layout, {.make_device = make_simulated_device}, true), host(layout, {}, false);
    for (int i = 0; i < 3; ++i) {
      const StepSums later = device.step(), at_once = host.step();
      EXPECT_EQ(later.loss.loss, at_once.loss.loss) << layout.to_string();
      EXPECT_EQ(later.gradient_norm, at_once.gradient_norm) << layout.to_string();
    }
  }
}

TEST(DeviceSteps, SpansAreOrderedAndWithinTheStep) {
  std::vector<std::string> names_on_host;
  for (const MakeTestDevice& make : {MakeTestDevice(), MakeTestDevice(make_simulated_device)}) {
    Steps steps({}, {.reproducible = false, .make_device = make}, true, MPI_COMM_SELF);
    steps.run.replica.wait();
    const std::size_t earlier = steps.device_spans().size();
    const auto begin = Recorder::Clock::now();
    steps.step();
    steps.run.replica.wait();
    steps.run.recorder.add_span("step", 0, begin, Recorder::Clock::now());
    const Span step = steps.run.recorder.spans().back();
    std::vector<Span> spans = steps.device_spans();
    spans.erase(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(earlier));
    std::vector<std::string> names;
    double end = step.begin_us;
    for (const Span& span : spans) {
      names.emplace_back(span.name);
      EXPECT_GE(span.begin_us, end) << span.name;
      EXPECT_GE(span.duration_us, 0) << span.name;
      end = span.begin_us + span.duration_us;
    }
    EXPECT_LE(end, step.begin_us + step.duration_us);
    for (const char* name : {"embedding", "matmul", "attention", "attention_backward", "rms_norm",
                             "weighted_loss", "add_squares", "adamw"}) {
      EXPECT_THAT(names, Contains(name));
    }
    if (!make) {
      names_on_host = names;
    } else {
      EXPECT_EQ(names, names_on_host);
    }
  }
}

TEST(DeviceSteps, UntracedStepsLeaveNoSpansOfTheDevice) {
  Steps steps({}, {.make_device = make_simulated_device}, false, MPI_COMM_SELF);
  steps.step();
  steps.run.replica.wait();
  EXPECT_TRUE(steps.device_spans().empty());
}

TEST(DeviceSteps, ATraceHoldsNothingBeforeItBegins) {
  // Values are rounded during construction.
  Steps steps({}, {.make_device = make_simulated_device, .compute = DType::bf16}, true,
              MPI_COMM_SELF);
  steps.run.replica.wait();
  EXPECT_TRUE(steps.device_spans().empty());
  steps.step();
  EXPECT_FALSE(steps.device_spans().empty());
}

TEST(DeviceSteps, CopiesAreInTheTrace) {
  for (const bool trace : {false, true}) {
    Steps steps({}, {.make_device = make_simulated_device, .compute = DType::bf16}, trace,
                MPI_COMM_SELF);
    steps.run.replica.wait();
    const auto begin = Recorder::Clock::now();
    steps.step();
    steps.run.replica.wait();
    steps.run.recorder.add_span("step", 0, begin, Recorder::Clock::now());
    const Span step = steps.run.recorder.spans().back();
    std::map<int, double> ends;
    std::vector<std::string> names;
    for (const Span& span : steps.run.recorder.spans()) {
      if (span.stream < ops::TracedOps::queue_streams || span.begin_us < step.begin_us) continue;
      names.emplace_back(span.name);
      EXPECT_GE(span.begin_us, ends[span.stream]) << span.name;
      EXPECT_GE(span.duration_us, 0) << span.name;
      ends[span.stream] = span.begin_us + span.duration_us;
      EXPECT_LE(ends[span.stream], step.begin_us + step.duration_us) << span.name;
    }
    if (!trace) {
      EXPECT_TRUE(names.empty());
      continue;
    }
    // The batch, then losses and squares of gradients.
    EXPECT_THAT(names, Contains("copy to device"));
    EXPECT_THAT(names, testing::Contains("copy to host").Times(2));
  }
}

TEST(DeviceSteps, ATraceIsFullAtHalfItsCapacity) {
  Recorder recorder;
  float value = 0;
  ops::TracedOps ops(ops::make_cpu_ops(1), device::host_device(), recorder);
  ops.begin();
  for (std::size_t i = 0; i < ops::TracedOps::most + 10; ++i) {
    ops.fill(Tensor(&value, {1}), static_cast<float>(i));
    if (i % 1000 != 0) continue;
    ops.before_wait();
    ops.after_wait();
  }
  ops.before_wait();
  ops.after_wait();
  EXPECT_EQ(recorder.spans().size(), ops::TracedOps::most);
  EXPECT_EQ(value, static_cast<float>(ops::TracedOps::most + 9));
}

TEST(DeviceSteps, BatchesThatCannotBeStagedNameARemedy) {
  SimulatedDevice device(1);
  device::MemoryLedger ledger(device);
  device.refuse_staging();
  try {
    const DeviceBatches batches(2, 1, 8, {}, ledger);
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("that can be pinned; start fewer ranks on a node, "
                                                "or use a smaller batch"));
  }
}

/// Steps with graphs beside the same without.
struct WithGraphs {
  explicit WithGraphs(const LayoutCase& layout = {}, bool trace = false)
      : with(layout, {.make_device = make_simulated_device, .graphs = true}, trace, MPI_COMM_SELF),
        without(layout, {.make_device = make_simulated_device}, false, MPI_COMM_SELF),
        device(dynamic_cast<SimulatedDevice&>(*with.run.device.device)),
        graphs(with.run.replica.engine().graphs()) {}
  /// One of the two runs, with its counts of captures and launches.
  struct Counts {
    std::uint64_t graphs = 0, launches = 0;
    bool operator==(const Counts&) const = default;
  };
  Counts step() {
    const Counts before{graphs.captured(), graphs.launched()};
    const StepSums here = with.step(), there = without.step();
    EXPECT_EQ(here.loss.loss, there.loss.loss) << "step " << with.number;
    EXPECT_EQ(here.gradient_norm, there.gradient_norm) << "step " << with.number;
    return {graphs.captured() - before.graphs, graphs.launched() - before.launches};
  }
  Steps with, without;
  SimulatedDevice& device;
  const StepGraphs& graphs;
};

TEST(DeviceSteps, GraphsAreCapturedOnceAndThenLaunched) {
  WithGraphs both;
  EXPECT_EQ(both.step(), (WithGraphs::Counts{0, 0}));
  const WithGraphs::Counts second = both.step();
  EXPECT_GT(second.graphs, 0U);
  EXPECT_EQ(second.launches, second.graphs);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(both.step(), (WithGraphs::Counts{0, second.graphs}));
}

TEST(DeviceSteps, GraphsTakeTheLossScaleOfTheStep) {
  WithGraphs both;
  for (const double scale : {1.0, 4.0, 0.5, 3.0}) {
    both.with.run.replica.engine().set_loss_scale(scale);
    both.without.run.replica.engine().set_loss_scale(scale);
    both.step();
  }
  EXPECT_GT(both.graphs.launched(), 0U);
}

/// The queued work depends on whether batches have documents: each kind has its own graphs.
TEST(DeviceSteps, GraphsMatchTheBatchesPattern) {
  WithGraphs both;
  std::vector<WithGraphs::Counts> counts;
  for (const bool documents : {false, true, false, true, true, false}) {
    both.with.documents = both.without.documents = documents;
    counts.push_back(both.step());
  }
  EXPECT_EQ(counts[0], (WithGraphs::Counts{0, 0}));
  EXPECT_EQ(counts[1], (WithGraphs::Counts{0, 0}));
  EXPECT_GT(counts[2].graphs, 0U);
  EXPECT_EQ(counts[3], counts[2]);
  EXPECT_EQ(counts[4], (WithGraphs::Counts{0, counts[2].launches}));
  EXPECT_EQ(counts[5], counts[4]);
}

TEST(DeviceSteps, GraphsAreCapturedAgainIfTheWorkSpaceMoves) {
  WithGraphs both;
  both.step();
  const WithGraphs::Counts captured = both.step();
  EXPECT_GT(captured.graphs, 0U);
  const device::Buffer grown(both.with.run.ledger, device::Use::workspace, 64);
  EXPECT_EQ(both.step(), captured);
  EXPECT_EQ(both.step(), (WithGraphs::Counts{0, captured.launches}));
}

TEST(DeviceSteps, ADeviceThatRefusesACaptureContinuesWithoutGraphs) {
  WithGraphs both;
  both.step();
  both.device.refuse_captures();
  EXPECT_EQ(both.step(), (WithGraphs::Counts{0, 0}));
  EXPECT_EQ(both.step(), (WithGraphs::Counts{0, 0}));
  EXPECT_THAT(both.graphs.refusal(), testing::HasSubstr("simulated"));
}

TEST(DeviceSteps, ATraceHasNoGraphs) {
  WithGraphs both({}, true);
  both.step();
  EXPECT_EQ(both.step(), (WithGraphs::Counts{0, 0}));
}

/// CPU operations that "choose" a number of this rank for each product shape.
class ChoosingOps final : public ops::ForwardingOps<ChoosingOps>, public ops::AlgorithmChoices {
 public:
  ChoosingOps(std::unique_ptr<ops::Ops> inner, int rank)
      : inner_(std::move(inner)), next_(1000 * rank) {}
  template <class... Parameters, class... Arguments>
  void forward(const char* /*name*/, void (Ops::*operation)(Parameters...),
               const Arguments&... arguments) {
    note(arguments...);
    ((*inner_).*operation)(arguments...);
  }
  static std::vector<std::byte> bytes_of(const std::map<std::string, int>& choices) {
    std::string text;
    for (const auto& [shape, choice] : choices) text += fmt::format("{} {}\n", shape, choice);
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
  }
  static std::map<std::string, int> read(std::span<const std::byte> choices) {
    std::istringstream text({reinterpret_cast<const char*>(choices.data()), choices.size()});
    std::map<std::string, int> result;
    std::string shape;
    for (int choice = 0; text >> shape >> choice;) result[shape] = choice;
    return result;
  }
  std::vector<std::byte> choices() const override { return bytes_of(chosen_); }
  void use_choices(std::span<const std::byte> choices) override {
    for (const auto& [shape, choice] : read(choices)) chosen_[shape] = choice;
  }
  std::vector<ops::Choice> describe_choices() const override {
    std::vector<ops::Choice> all;
    for (const auto& [shape, choice] : chosen_) {
      all.push_back({.factors = shape, .algorithm = std::to_string(choice)});
    }
    return all;
  }
  std::map<std::string, int> chosen_;
  std::map<std::string, int> made_;  // by this rank

 private:
  template <class... T>
  void note(const T&...) {}
  void note(const Tensor& c, const Tensor& a, const Tensor&, const ops::MatmulOptions&) {
    const std::string shape =
        fmt::format("{}x{}x{}", c.extent(0), c.extent(1), a.elements() / c.extent(0));
    if (!chosen_.contains(shape)) made_[shape] = chosen_[shape] = next_++;
  }
  std::unique_ptr<ops::Ops> inner_;
  int next_;
};

TEST(DeviceSteps, RanksSettleOnTheSameChoices) {
  for (const LayoutCase& layout : layouts_of_world()) {
    ChoosingOps* own = nullptr;
    const MakeTestDevice make = [&](int rank) {
      return TestDevice{nullptr, [&own, rank](device::MemoryLedger& ledger, int threads, bool) {
                          auto ops = std::make_unique<ChoosingOps>(
                              ops::make_cpu_ops(threads, &ledger), rank);
                          own = ops.get();
                          return ops;
                        }};
    };
    // Traced or not: the tracing wrapper does not hide it.
    Steps chosen(layout, {.reproducible = false, .make_device = make}, true);
    Steps plain(layout, {.reproducible = false}, false);
    EXPECT_TRUE(own->chosen_.empty());
    chosen.run.replica.settle_choices();
    plain.run.replica.settle_choices();
    EXPECT_FALSE(plain.run.recorder.seconds().contains("settle choices"));
    const auto settled = own->chosen_;
    // The recorded choices are the ones used.
    const std::vector<ops::Choice> recorded = chosen.run.replica.choices();
    ASSERT_EQ(recorded.size(), settled.size());
    for (const ops::Choice& choice : recorded) {
      EXPECT_EQ(std::to_string(settled.at(choice.factors)), choice.algorithm);
    }
    EXPECT_TRUE(plain.run.replica.choices().empty());
    // Every rank has for every shape the choice of the first rank that made one.
    const std::vector<std::byte> mine = ChoosingOps::bytes_of(own->made_);
    std::map<std::string, int> expected;
    for (const auto& theirs : chosen.run.grid.world().all_gather_bytes(
             {reinterpret_cast<const std::uint8_t*>(mine.data()), mine.size()})) {
      expected.merge(ChoosingOps::read(std::as_bytes(std::span(theirs))));
    }
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(settled, expected);
    // Training uses no other shapes, and its results do not change.
    for (int i = 0; i < 2; ++i) {
      const StepSums with = chosen.step(), without = plain.step();
      EXPECT_EQ(with.loss.loss, without.loss.loss);
      EXPECT_EQ(with.gradient_norm, without.gradient_norm);
    }
    EXPECT_EQ(own->chosen_, settled);
  }
}

}  // namespace
}  // namespace trireme::parallel::test
