// Steps on a device that computes later: how often the host waits for it and what a trace shows of
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "matrix_runs.hpp"

namespace trireme::parallel::test {
namespace {

using testing::Contains;
using testing_support::ImaginaryDevice;

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
        run(config, layout, stage_options(layout, settings), comm, settings.make_device, trace) {
    run.replica.initialise();
  }
  StepSums step() {
    const auto batches = make_batches(config, run.layout, run.grid.coordinate(comm::Axis::data),
                                      number, settings.global_batch);
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
  model::ModelConfig config;
  RunSettings settings;
  LayoutRun run;
  std::int64_t number = 0;
};

TEST(DeviceSteps, TheHostWaitsOnceInAStep) {
  for (const LayoutCase& layout : layouts_of_world()) {
    for (const bool trace : {false, true}) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        Steps steps(
            layout,
            {.reproducible = false, .make_device = make_imaginary_device, .compute = compute},
            trace);
        auto& device = dynamic_cast<ImaginaryDevice&>(*steps.run.device.device);
        steps.step();  // rooms grow
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
    Steps device(layout, {.make_device = make_imaginary_device}, true), host(layout, {}, false);
    for (int i = 0; i < 3; ++i) {
      const StepSums later = device.step(), at_once = host.step();
      EXPECT_EQ(later.loss.loss, at_once.loss.loss) << layout.to_string();
      EXPECT_EQ(later.gradient_norm, at_once.gradient_norm) << layout.to_string();
    }
  }
}

TEST(DeviceSteps, SpansAreOrderedAndWithinTheStep) {
  std::vector<std::string> names_on_host;
  for (const MakeTestDevice& make : {MakeTestDevice(), MakeTestDevice(make_imaginary_device)}) {
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
  Steps steps({}, {.make_device = make_imaginary_device}, false, MPI_COMM_SELF);
  steps.step();
  steps.run.replica.wait();
  EXPECT_TRUE(steps.device_spans().empty());
}

TEST(DeviceSteps, ATraceIsFullAtHalfItsRoom) {
  Recorder recorder;
  float value = 0;
  ops::TracedOps ops(ops::make_cpu_ops(1), device::host_device(), recorder);
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

}  // namespace
}  // namespace trireme::parallel::test
