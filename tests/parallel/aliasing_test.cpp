// Activation aliasing, against a model of what each byte holds.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/device/memory.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/parallel/stage_memory.hpp"

#include "support.hpp"

namespace trireme::parallel::test {
namespace {

using Kind = UnitAction::Kind;

/// Writes the parts' bytes in the order of forward and the groups' in the order of backward; each
/// reader must find its own bytes. Returns the number of parts that alias gradients.
int walk(const Stage& stage, const std::vector<StashPart>& parts, const Aliases& aliases) {
  const params::Layout& layout = stage.layout();
  const int last = stage.last_unit();
  // Tags of bytes: part p of a micro-batch m as p·64 + m; a group's gradient as −1 − group.
  std::vector<std::int64_t> owner(static_cast<std::size_t>(layout.elements()) * sizeof(float),
                                  -999);
  const auto fill = [&](std::int64_t begin, std::int64_t bytes, std::int64_t who) {
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + bytes, static_cast<std::int64_t>(owner.size()));
    std::fill_n(owner.begin() + begin, bytes, who);
  };
  const auto holds = [&](std::int64_t begin, std::int64_t bytes, std::int64_t who) {
    return std::all_of(owner.begin() + begin, owner.begin() + begin + bytes,
                       [&](std::int64_t found) { return found == who; });
  };
  const auto bytes_of = [&](int g) {
    const params::Range& own = layout.groups()[static_cast<std::size_t>(g)].elements;
    return params::Range{own.begin * 4, own.end * 4};
  };
  std::vector<bool> unzeroed = aliases.aliased;
  for (std::size_t g = 0; g < unzeroed.size(); ++g) {
    const params::Range own = bytes_of(static_cast<int>(g));
    if (!unzeroed[g]) fill(own.begin, own.size(), -1 - static_cast<std::int64_t>(g));
  }
  const auto add = [&](int unit) {
    for (int g : layout.groups_of(unit)) {
      const params::Range own = bytes_of(g);
      const auto i = static_cast<std::size_t>(g);
      if (unzeroed[i]) fill(own.begin, own.size(), -1 - g);
      unzeroed[i] = false;
      EXPECT_TRUE(holds(own.begin, own.size(), -1 - g)) << "gradient of group " << g;
    }
  };
  for (const UnitAction& action : stage.program().actions) {
    if (action.unit < 0) continue;
    // Gradients are zeroed before the action reads anything.
    const bool adds = action.kind == Kind::backward || action.kind == Kind::backward_weight ||
                      (action.kind == Kind::forward && action.unit == last);
    if (adds) add(action.unit);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const StashPart& part = parts[p];
      if (aliases.places[p] < 0 || part.chunk != action.chunk || part.slot != action.stash)
        continue;
      const auto bytes = static_cast<std::int64_t>(part.bytes);
      const std::int64_t who = static_cast<std::int64_t>(p) * 64 + action.micro_batch;
      if (part.unit == action.unit && action.kind == Kind::forward) {
        fill(aliases.places[p], bytes, who);
      } else if (part.unit == action.unit) {
        EXPECT_TRUE(holds(aliases.places[p], bytes, who))
            << "part " << p << " at " << to_string(action);
      }
    }
    if (adds) add(action.unit);  // and not overwritten
  }
  EXPECT_EQ(std::count(unzeroed.begin(), unzeroed.end(), true), 0)
      << "a gradient that was never zeroed";
  return static_cast<int>(std::count_if(aliases.places.begin(), aliases.places.end(),
                                        [](std::int64_t place) { return place >= 0; }));
}

TEST(Aliases, NoActivationIsReadAfterItsGradientIsWritten) {
  int aliased = 0, cases = 0;
  for (const bool tied : {false, true}) {
    const model::Transformer model(model_of(6, tied));
    for (const int stages : {1, 2}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble"}) {
        for (const int micro_batches : {1, 2, 4}) {
          for (int place = 0; place < stages; ++place) {
            if (schedule == "interleaved" && (stages == 1 || micro_batches == 1)) continue;
            StageOptions options{.schedule = schedule,
                                 .virtual_stages = schedule == "interleaved" ? 2 : 1,
                                 .micro_batches = micro_batches};
            options.place.pipeline = stages;
            options.place.stage = place;
            const Stage stage(model, options);
            std::vector<StashPart> parts;
            for (int c = 0; c < static_cast<int>(stage.chunks().size()); ++c) {
              const params::Range& units = stage.chunks()[static_cast<std::size_t>(c)];
              const int slots = stage.program().stash_slots[static_cast<std::size_t>(c)];
              for (int slot = 0; slot < slots; ++slot) {
                for (auto unit = static_cast<int>(units.begin); unit < units.end; ++unit) {
                  for (const std::size_t bytes : {0, 640, 64 * 77, 64 * 801}) {
                    parts.push_back({c, slot, unit, bytes});
                  }
                }
              }
            }
            SCOPED_TRACE(fmt::format("{} stage {} of {}, {} micro-batches", schedule, place, stages,
                                     micro_batches));
            const Aliases aliases =
                plan_aliases(stage.program(), stage.layout(), stage.last_unit(), parts);
            const int found = walk(stage, parts, aliases);
            if (stages == 1 && micro_batches == 1) {
              EXPECT_GE(found, 8);
            }
            if (stages == 1 && micro_batches > 1 && schedule == "1f1b") {
              EXPECT_EQ(found, 0);
            }
            aliased += found;
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_GT(aliased, cases);
}

TEST(Aliases, NotWithShardedOffloadedOrSeveralSums) {
  const model::Transformer model(model_of(4, false));
  const auto alias = [&](const StageOptions& options) {
    const Stage stage(model, options);
    const std::vector<bool>& aliased = stage.memory().aliased();
    return std::count(aliased.begin(), aliased.end(), true) > 0;
  };
  EXPECT_TRUE(alias({}));
  EXPECT_TRUE(alias({.zero = 1}));
  EXPECT_FALSE(alias({.train = false}));
  EXPECT_FALSE(alias({.zero = 2}));
  EXPECT_FALSE(alias({.zero = 1, .offload = true}));
  EXPECT_FALSE(alias({.sequences = 8, .reproducible = true}));
}

}  // namespace
}  // namespace trireme::parallel::test
