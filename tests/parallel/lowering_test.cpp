// The programs of pipeline stages: where gathers of sharded parameters are (ZeRO 3).
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/parallel/stage.hpp"

#include "support.hpp"

namespace trireme::parallel::test {
namespace {

using Kind = UnitAction::Kind;

bool reads_parameters(const UnitAction& action) {
  return action.is_compute() && action.kind != Kind::backward_weight;
}

struct Gathers {
  int all = 0, late = 0;  // late: not before the reader in front of the one that needs it
};

/// Follows what each buffer holds through the program: every reader finds its groups, and a gather
/// is one reader ahead unless that reader uses the same buffer or there is none.
Gathers follow(const Stage& stage) {
  const params::Layout& layout = stage.layout();
  const std::vector<int> buffers = state::plan_gather_buffers(layout, stage.state_options()).buffer;
  const auto buffer_of = [&](int g) { return buffers[static_cast<std::size_t>(g)]; };
  const std::vector<UnitAction>& actions = stage.program().actions;
  std::map<int, int> held;  // group by buffer
  std::vector<int> readers;
  Gathers found;
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    const UnitAction& action = actions[static_cast<std::size_t>(i)];
    if (reads_parameters(action)) {
      for (int g : layout.groups_of(action.unit)) {
        EXPECT_TRUE(held.contains(buffer_of(g)) && held[buffer_of(g)] == g)
            << to_string(action) << ", action " << i << ", reads group " << g;
      }
      readers.push_back(i);
    }
    if (action.kind != Kind::gather) continue;
    held[buffer_of(action.group)] = action.group;
    ++found.all;
    int between = 0;
    for (int j = i + 1;; ++j) {
      const UnitAction& next = actions.at(static_cast<std::size_t>(j));
      if (!reads_parameters(next)) continue;
      const std::vector<int>& needs = layout.groups_of(next.unit);
      if (std::find(needs.begin(), needs.end(), action.group) != needs.end()) break;
      ++between;
    }
    EXPECT_LE(between, 1) << "gather of group " << action.group << ", action " << i;
    if (between > 0 || readers.empty()) continue;
    ++found.late;
    bool shares = false;
    for (int g : layout.groups_of(actions[static_cast<std::size_t>(readers.back())].unit)) {
      shares = shares || buffer_of(g) == buffer_of(action.group);
    }
    EXPECT_TRUE(shares) << "gather of group " << action.group << ", action " << i
                        << ", could be earlier";
  }
  return found;
}

TEST(Lowering, EveryReaderFindsItsParametersGatheredAhead) {
  int late = 0;
  for (const bool tied : {false, true}) {
    const model::Transformer model(model_of(6, tied));
    for (const bool reshard : {false, true}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble"}) {
        for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full}) {
          for (const int stages : {1, 2, 4}) {
            if (schedule == "interleaved" && stages == 1) continue;
            for (int place = 0; place < stages; ++place) {
              SCOPED_TRACE(fmt::format("{} stage {} of {}, tied {}, reshard {}, recompute {}",
                                       schedule, place, stages, tied, reshard,
                                       static_cast<int>(recompute)));
              StageOptions options{.schedule = schedule,
                                   .virtual_stages = schedule == "interleaved" ? 2 : 1,
                                   .micro_batches = 4,
                                   .zero = 3,
                                   .reshard_after_forward = reshard,
                                   .recompute = recompute};
              options.place.pipeline = stages;
              options.place.stage = place;
              options.place.data = options.place.shard = 2;
              const Stage stage(model, options);
              const Gathers gathers = follow(stage);
              const auto groups = static_cast<int>(stage.layout().groups().size());
              EXPECT_GE(gathers.all, groups);
              if (!reshard) {
                // Once per micro-batch and group; a tied weight serves two units.
                EXPECT_LE(gathers.all, 4 * (groups + (tied ? 1 : 0)));
              }
              late += gathers.late;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(late, 0) << "interleaved stages change between units of the same buffer";
}

TEST(Lowering, GathersOfOneMicroBatch) {
  const model::Transformer model(model_of(2, false));
  StageOptions options{.zero = 3};
  options.place.data = options.place.shard = 2;
  const Stage stage(model, options);
  std::vector<std::string> program;
  for (const UnitAction& action : stage.program().actions) {
    if (action.kind == Kind::gather || action.is_compute()) {
      program.push_back(fmt::format("{}{}",
                                    action.kind == Kind::gather    ? "gather "
                                    : action.kind == Kind::forward ? "F "
                                                                   : "B ",
                                    action.kind == Kind::gather ? action.group : action.unit));
    }
  }
  // Units: embedding 0, blocks 1 and 2, head 3, whose parameters serve F and B.
  const std::vector<std::string> expected{"gather 0", "gather 1", "F 0",      "gather 2", "F 1",
                                          "gather 3", "F 2",      "F 3",      "gather 2", "B 3",
                                          "gather 1", "B 2",      "gather 0", "B 1",      "B 0"};
  EXPECT_EQ(program, expected);
}

}  // namespace
}  // namespace trireme::parallel::test
