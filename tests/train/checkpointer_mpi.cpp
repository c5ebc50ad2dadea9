// What is saved, what is pruned, and what a save that fails does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/checkpointer.hpp"

#include "train/parts.hpp"

namespace trireme::train::test {
namespace {

using ::testing::HasSubstr;
using Failure = Checkpointer::Failure;

/// A checkpointer whose checkpoints are of one small tensor.
class Saving {
 public:
  explicit Saving(const RunConfig& config, std::function<double()> now = steady_seconds())
      : job_(config),
        grid_(job_->session, job_->plan.shape, job_->ledger),
        corpus_(data::Corpus::open(config.data.path, config.model.sequence)),
        reporter_(*job_, world_rank() == 0),
        checkpointer_(*job_, corpus_, reporter_, std::move(now)) {
    if (!reporter_.is_root()) return;
    checkpointer_.take_tokenizer();
    reporter_.open();
  }
  Checkpointer& operator*() { return checkpointer_; }
  Checkpointer* operator->() { return &checkpointer_; }
  const RunConfig& config() { return job_.config(); }

  void save(std::int64_t step, Failure failure, bool background = false) {
    const checkpoint::State state =
        checkpointer_.state_at({.step = step, .samples = 2 * step}, {{"kept", step}});
    checkpointer_.save(state, failure, [&]() -> StartedSave {
      if (!background) {
        return {checkpoint::save(config().train.output, state, pieces(), grid_.world()), nullptr};
      }
      return {
          {},
          std::make_unique<checkpoint::Save>(config().train.output, state, pieces(),
                                             device::host_device(), grid_.world(), job_->ledger)};
    });
  }
  void fail(std::int64_t step, Failure failure) {
    checkpointer_.save(checkpointer_.state_at({.step = step}, {}), failure,
                       []() -> StartedSave { throw AgreedError("the disk is full"); });
  }

 private:
  std::vector<checkpoint::Piece> pieces() {
    return {{.name = "parameters/x",
             .shape = {4},
             .data = Tensor(values_, {4}),
             .write = world_rank() == 0}};
  }
  SmallJob job_;
  comm::Grid grid_;
  data::Corpus corpus_;
  RunReporter reporter_;
  Checkpointer checkpointer_;
  float values_[4] = {1, 2, 3, 4};
};

TEST(Checkpointer, KnowsWhenMinutesSinceTheLastSaveAreOver) {
  const Folder folder;
  RunConfig config = small_config(folder, "run");
  config.checkpoint.every_minutes = 2;
  double now = 5;
  Saving saving(config, [&] { return now; });
  now = 124;
  EXPECT_FALSE(saving->minutes_over());
  now = 125;
  EXPECT_TRUE(saving->minutes_over());
  saving->restart_clock();
  EXPECT_FALSE(saving->minutes_over());
  config.checkpoint.every_minutes = 0;
  now = 1e9;
  EXPECT_FALSE(Saving(config, [&] { return now; })->minutes_over());
}

TEST(Checkpointer, KeepsTheNewestAndKnowsWhatIsSaved) {
  const Folder folder;
  RunConfig config = small_config(folder, "run");
  config.checkpoint.keep = 1;
  Saving saving(config);
  EXPECT_THAT(saving->last_good(), HasSubstr("no checkpoint yet"));
  saving->note_sound(1);
  saving.save(1, Failure::warns);
  saving->note_sound(2);
  saving.save(2, Failure::stops);
  EXPECT_FALSE(saving->saved(1));
  EXPECT_TRUE(saving->saved(2));
  EXPECT_THAT(saving->last_good(), HasSubstr(step_folder(2)));
  quiet_barrier();
  EXPECT_FALSE(fs::exists(folder / "run" / step_folder(1)));
  const checkpoint::Reader reader(folder / "run" / step_folder(2));
  EXPECT_EQ(reader.state().samples, 4);
  EXPECT_EQ(reader.state().extra.at("kept"), 2);
  EXPECT_FALSE(reader.state().extra.contains("states_begin"));
  quiet_barrier();
}

TEST(Checkpointer, OnlyACheckpointBeforeASoundStepIsGood) {
  const Folder folder;
  RunConfig config = small_config(folder, "run");
  config.checkpoint.keep = 2;
  Saving saving(config);
  const auto exists = [&](std::int64_t step) {
    return fs::exists(folder / "run" / step_folder(step));
  };
  saving->note_sound(1);
  saving.save(1, Failure::warns);
  EXPECT_THAT(saving->last_good(), HasSubstr("no step was sound after the checkpoint"));
  saving->note_sound(2);
  EXPECT_THAT(saving->last_good(), HasSubstr("last good checkpoint is"));
  saving.save(2, Failure::warns);
  for (const std::int64_t skipped : {3, 4}) saving.save(skipped, Failure::warns);
  EXPECT_THAT(saving->last_good(), HasSubstr(step_folder(1)));
  quiet_barrier();
  EXPECT_TRUE(exists(1) && exists(2));  // though there are newer ones
  saving->note_sound(5);
  EXPECT_THAT(saving->last_good(), HasSubstr(step_folder(4)));
  saving.save(5, Failure::warns);
  quiet_barrier();
  EXPECT_TRUE(exists(4) && !exists(3) && !exists(1));
  saving->resumed({.folder = "elsewhere/step-00000009", .position = {.step = 9}, .own = false});
  EXPECT_THAT(saving->last_good(), HasSubstr(step_folder(4)));
  quiet_barrier();
}

TEST(Checkpointer, ASaveInTheBackgroundExistsOnceSettled) {
  const Folder folder;
  Saving saving(small_config(folder, "run"));
  saving.save(1, Failure::warns, true);
  EXPECT_TRUE(saving->pending());
  EXPECT_FALSE(saving->saved(1));
  saving->settle(Failure::warns, 3);
  EXPECT_FALSE(saving->pending());
  EXPECT_FALSE(saving->unwritten());
  EXPECT_TRUE(saving->saved(1));
  if (world_rank() != 0) return;
  const auto lines = lines_of(folder / "run");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("event"), "save");
  EXPECT_EQ(lines[0].at("step"), 3);  // when it was done
}

TEST(Checkpointer, AFailureWarnsOrStops) {
  const Folder folder;
  Saving saving(small_config(folder, "run"));
  saving.save(1, Failure::warns);
  saving.fail(2, Failure::warns);
  EXPECT_THROW(saving.fail(3, Failure::stops), AgreedError);
  EXPECT_TRUE(saving->saved(1));
  if (world_rank() == 0) {
    EXPECT_EQ(lines_of(folder / "run").back().at("event"), "save failed");
  }
  RunConfig strict = small_config(folder, "strict");
  strict.checkpoint.on_failure = "stop";
  Saving stopping(strict);
  EXPECT_THROW(stopping.fail(1, Failure::warns), AgreedError);
}

TEST(Checkpointer, AResumedRunKnowsItsOwnCheckpointsAlone) {
  const Folder folder;
  Saving saving(small_config(folder, "run"));
  saving->resumed({.folder = "elsewhere/step-00000005", .position = {.step = 5}, .own = false});
  EXPECT_FALSE(saving->saved(5));
  EXPECT_THAT(saving->last_good(), HasSubstr("elsewhere"));
  saving->resumed({.folder = "run/step-00000005", .position = {.step = 5}, .own = true});
  EXPECT_TRUE(saving->saved(5));
  const checkpoint::State state =
      saving->state_at({.step = 9, .samples = 1, .states_begin = 6}, nlohmann::json::object());
  EXPECT_EQ(state.extra.at("states_begin"), 6);
}

}  // namespace
}  // namespace trireme::train::test
