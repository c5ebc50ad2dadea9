// What is drawn of a step, against the times that the simulator gives without an observer.
#include "trireme/plan/step_chart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/step_time.hpp"

#include "layouts.hpp"
#include "machines.hpp"

namespace trireme::plan::test {
namespace {

using testing::HasSubstr;

/// A span that stays.
struct Kept {
  const StreamOperation* operation;
  std::string part;
  double begin, end;
};

/// The spans of each row: class, and stream or −1.
using Rows = std::map<std::pair<std::size_t, int>, std::vector<Kept>>;

struct Case {
  Layout layout;
  Machine machine;
  comm::GridShape shape{};
  StageClasses stages{};
  StepTimes times{};
  std::string name() const { return shape.to_string() + " on " + machine.name; }
  Rows spans() const {
    Rows rows;
    simulate(shape, stages.classes, stages.class_of, machine, [&](const Span& span) {
      const StreamOperation* of = span.operation;
      const int stream = of == nullptr ? -1 : of->blocking ? 1000 : of->stream;
      rows[{span.of, stream}].push_back({of, std::string(span.part), span.begin, span.end});
    });
    return rows;
  }
};

std::vector<Case> cases() {
  const model::Transformer model(even_model());
  std::vector<Case> all;
  for (const Layout& layout : {Layout{1, 1, 1, 0, false}, Layout{2, 2, 2, 1, true},
                               Layout{1, 1, 4, 0, false}, Layout{2, 2, 2, 3, true}}) {
    for (Machine machine : {cpu_machine(), gpu_machine()}) {
      machine.device.step_ms = 0.5;
      Case each{.layout = layout, .machine = machine};
      each.shape = shape_of(layout.tensor, layout.data, layout.pipeline);
      each.stages = trace_stages(model, options_of(layout), each.shape, machine.on_host());
      each.times = simulate(each.shape, each.stages.classes, each.stages.class_of, machine);
      all.push_back(std::move(each));
    }
  }
  return all;
}

/// Seconds by part.
template <class AnySpans>
std::map<std::string, double> sums_of(const AnySpans& spans) {
  std::map<std::string, double> sums;
  for (const auto& span : spans) sums[span.part] += span.end - span.begin;
  return sums;
}

void expect_equal(const std::map<std::string, double>& sums, const RankTimes& times,
                  const std::string& what) {
  EXPECT_EQ(sums.size(), times.parts.size()) << what;
  for (const auto& [part, seconds] : times.parts) {
    ASSERT_TRUE(sums.contains(part)) << what << part;
    // Sections add the same times in another order.
    EXPECT_NEAR(sums.at(part), seconds, 1e-9 * times.end) << what << part;
  }
}

template <class AnySpans>
void expect_in_order(const AnySpans& spans, double end, const std::string& what) {
  double last = 0;
  for (const auto& span : spans) {
    EXPECT_GE(span.begin, last - 1e-12 * end) << what << span.part;
    EXPECT_GT(span.end, span.begin) << what << span.part;
    last = span.end;
  }
  EXPECT_LE(last, end * (1 + 1e-9)) << what;
}

TEST(Spans, AreInTheStepWithoutOverlapAndSumUpToItsParts) {
  for (const Case& each : cases()) {
    for (const auto& [row, spans] : each.spans()) {
      const RankTimes& rank = each.times.ranks[row.first];
      expect_in_order(spans, row.second < 0 ? rank.end : each.times.seconds, each.name());
      if (row.second < 0) expect_equal(sums_of(spans), rank, each.name());
    }
  }
}

// Messages of a channel between two stages match in order.
TEST(Spans, OfReceivesEndAfterTheirSendsBegin) {
  int messages = 0;
  for (const Case& each : cases()) {
    std::map<std::tuple<std::string, int, int>, std::vector<Kept>> sent, received;  // from, to
    for (const auto& [row, spans] : each.spans()) {
      const int own = each.stages.classes[row.first].rank;
      for (const Kept& span : spans) {
        if (span.operation == nullptr || !span.operation->channel.direction) continue;
        ASSERT_EQ(span.operation->planned.messages.size(), 1);
        const auto& message = span.operation->planned.messages.front();
        const int peer = comm::members(each.shape, comm::GroupKind::pipeline, own)
                             .at(static_cast<std::size_t>(message.peer));
        (message.send ? sent[{span.part, own, peer}] : received[{span.part, peer, own}])
            .push_back(span);
      }
    }
    for (const auto& [way, receives] : received) {
      ASSERT_EQ(receives.size(), sent[way].size()) << each.name();
      for (std::size_t i = 0; i < receives.size(); ++i, ++messages) {
        EXPECT_GT(receives[i].end, sent[way][i].begin) << each.name();
      }
    }
  }
  EXPECT_GT(messages, 50);
}

TEST(StepChart, HasTheSumsOfPartsHoweverNarrowItIs) {
  for (const Case& each : cases()) {
    for (const int pixels : {7, 1000}) {
      std::vector<int> ranks;
      for (const RankClass& known : each.stages.classes) ranks.push_back(known.rank);
      ranks.push_back(each.shape.size() - 1);  // one that is not simulated itself
      const StepChart chart = chart_step(each.shape, each.stages.classes, each.stages.class_of,
                                         each.machine, each.times.seconds, ranks, pixels);
      const Rows all = each.spans();
      std::size_t own_rows = 0;
      auto known = all.begin();  // of the row; rows of the last rank are those of another again
      for (const ChartRow& row : chart.rows) {
        if (known != all.end()) {
          EXPECT_NEAR(row.spans.back().end, known->second.back().end, 2.01 * chart.seconds / pixels)
              << each.name() << row.name;
          ++known;
        }
        // At most one wider than half a pixel, or a part of two pixels, at each half pixel.
        EXPECT_LT(row.spans.size(), 12U * static_cast<std::size_t>(pixels)) << each.name();
        expect_in_order(row.spans, chart.seconds, each.name());
        if (!row.name.empty()) continue;
        ++own_rows;
        expect_equal(sums_of(row.spans), each.times.ranks[each.stages.class_of(row.rank)],
                     each.name());
      }
      EXPECT_EQ(own_rows, ranks.size()) << each.name();
    }
  }
}

TEST(StepChart, MergesWhatIsTooNarrowToBeSeen) {
  const Case each = cases().front();  // one rank
  const auto count = [&](int pixels) {
    return chart_step(each.shape, each.stages.classes, each.stages.class_of, each.machine,
                      each.times.seconds, {0}, pixels)
        .rows.front()
        .spans.size();
  };
  EXPECT_LT(count(4), 20U);
  EXPECT_GT(count(1'000'000), 200U);
}

TEST(StepChart, IsDrawnWithARowForEachStream) {
  const Case each = cases()[3];
  const StepChart chart = chart_step(each.shape, each.stages.classes, each.stages.class_of,
                                     each.machine, each.times.seconds, {0, 4}, 500);
  const std::string svg = svg_chart(chart, each.shape, "a <title>", "a note", 500);
  for (const char* text : {"a &lt;title&gt;", "a note", ">rank 0<", ">rank 4<", ">tensor<",
                           ">activations sent<", ">gradients received<", "fill=\"url(#wait",
                           ">stage 1, data 0, tensor 0<", ">hatched: the rank waits for them<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

}  // namespace
}  // namespace trireme::plan::test
