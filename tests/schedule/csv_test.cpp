// Schedules as text: written schedules read back, and other text is checked.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/support.hpp"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

TEST(Csv, ReadsBackWhatWasWritten) {
  for (const std::string& name : schedule_names()) {
    for_each_schedule(name, [](const Schedule& plan) {
      if (plan.micro_batches > 9 && plan.micro_batches < 30) return;
      const Schedule read =
          parse_schedule(to_csv(plan), "a.csv", {plan.stages, plan.micro_batches, plan.chunks});
      EXPECT_EQ(read.actions, plan.actions);
      EXPECT_EQ(read.name, "file:a.csv");
      const Schedule inferred = parse_schedule(to_csv(plan), "a.csv");
      EXPECT_EQ(inferred.chunks, plan.chunks);
      EXPECT_EQ(inferred.micro_batches, plan.micro_batches);
      EXPECT_EQ(inferred.actions, plan.actions);
    });
  }
}

TEST(Csv, SkipsEmptyCellsAndBlanks) {
  const Schedule plan = parse_schedule("0F0, ,0B0,\r\n,\t1F0,1I0 ,,1W0\r\n\n \n", "a.csv");
  EXPECT_EQ(to_csv(plan), "0F0,0B0\n1F0,1I0,1W0\n");
}

TEST(Csv, IsReadFromAFile) {
  const std::string path = testing::TempDir() + "schedule.csv";
  std::ofstream(path) << "0F0,0B0\n1F0,1B0\n";
  EXPECT_EQ(read_schedule(path, {2, 1, 1}).stages, 2);
  EXPECT_EQ(read_schedule(path).name, "file:" + path);
  EXPECT_EQ(error_of([] { read_schedule("/nowhere/s.csv"); }),
            "/nowhere/s.csv: cannot be read: No such file or directory; name an existing CSV file");
  EXPECT_THAT(error_of([] { read_schedule(testing::TempDir()); }), HasSubstr("is a folder"));
  EXPECT_THAT(error_of([] { read_schedule("/dev/zero"); }),
              HasSubstr("/dev/zero: is not a regular file"));
}

TEST(Csv, NamesLineColumnAndRule) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "s:1:1: holds no schedule; write one line per stage"},
      {" \n\r\n", "s:1:1: holds no schedule; write one line per stage"},
      {",,", "s:1:1: holds no actions; write cells such as 0F0 and 0B0, one line per stage"},
      {"0F0,0B0\n1F0,1X0",
       "s:2:5: \"1X0\" is not virtual stage, F, B, I or W, micro-batch; write "
       "for example 0F0, 2I0, 2W0 or 1B3"},
      {"0F0;0B0", "s:1:1: \"0F0;0B0\" is not virtual stage"},
      {"F0,B0", "s:1:1: \"F0\" is not virtual stage"},
      {"0F,0B0", "s:1:1: \"0F\" is not virtual stage"},
      {"0,0B0", "s:1:1: \"0\" is not virtual stage"},
      {"0f0,0b0", "s:1:1: \"0f0\" is not virtual stage"},
      {"-0F0,0B0", "s:1:1: \"-0F0\" is not virtual stage"},
      {"0F-1,0B0", "s:1:1: \"0F-1\" is not virtual stage"},
      {"0F0 0B0", "s:1:1: \"0F0 0B0\" is not virtual stage"},
      {"0F0,  0B0.5", "s:1:7: \"0B0.5\" is not virtual stage"},
      {"0F99999999999999999999", "s:1:1: \"0F99999999999999999999\" is not virtual stage"},
      {"9999999F0", "s:1:1: \"9999999F0\" is not virtual stage"},
      {std::string("0F0,\0\x1b", 6), "s:1:5: \"\\u0000\\u001b\" is not virtual stage"},
      {"0F0," + std::string(1000, 'x'),
       "s:1:5: \"" + std::string(24, 'x') + "…\" is not virtual stage"},
      {"0F0,0B0\n0F0,0B0",
       "s:2:1: virtual stage 0 of 2 stages belongs to stage 0, line 1; move the cell there"},
      {"0F0,0B0,2F0,2B0\n1F0,1B0", "schedule file:s: stage 1: 3F0 is missing"},
      {"0F0,0B0,0B0", "schedule file:s: stage 0: 0B0 is listed 2 times"},
      {"0F0,0I0", "schedule file:s: stage 0: 0W0 is missing"},
      {"0F0,0I0,0F1,0B1,0B0", "schedule file:s: stage 0: 0B0 and 0I0 exclude each other"},
      {"0I0,0F0,0W0", "schedule file:s: stage 0: 0I0 is before 0F0"},
      {"0F0,0B0\n\n2F0,2B0", "schedule file:s: stage 1: 1F0 is missing"},
      // Sizes that the text claims but does not fill cost nothing.
      {"0F999999,0B999999,999999F0", "schedule file:s: stage 0: 0F0 is missing"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "schedule file:s: its stages wait for each other"},
  };
  for (const auto& given : cases) {
    EXPECT_THAT(error_of([&] { parse_schedule(given.first, "s"); }), HasSubstr(given.second))
        << given.first;
  }
}

TEST(Csv, RefusesSizesOtherThanTheRuns) {
  const std::string text = to_csv(make_schedule("interleaved", 2, 2, 2));
  EXPECT_EQ(error_of([&] {
              parse_schedule(text, "s", {4, 2, 1});
            }),
            "s:1:1: the file is for 2 stages, not 4; use a file for 4 stages, or "
            "parallel.pipeline = 2");
  EXPECT_THAT(error_of([&] {
                parse_schedule(text, "s", {2, 4, 2});
              }),
              HasSubstr("the file is for 2 micro-batches, not 4"));
  EXPECT_THAT(error_of([&] {
                parse_schedule(text, "s", {2, 2, 3});
              }),
              HasSubstr("parallel.virtual_stages = 2"));
  EXPECT_THAT(error_of([&] {
                parse_schedule(text, "s", {2, 2, 1});
              }),
              HasSubstr("s:1:9: virtual stage 2 does not exist"));
  EXPECT_THAT(error_of([&] {
                parse_schedule(text, "s", {2, 1, 2});
              }),
              HasSubstr("s:1:5: micro-batch 1 does not exist: there are 1"));
}

TEST(Csv, SurvivesDamage) {
  std::mt19937 random(20261121);
  const std::string characters = "0123456789FBIW,,\n\n \r-x\xff";
  int valid = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string& name = schedule_names()[random() % 4];
    std::string text = to_csv(make_schedule(name, 1 + static_cast<int>(random() % 3),
                                            1 + static_cast<int>(random() % 3)));
    for (std::uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t place = random() % text.size();
      if (random() % 2 == 0) text.erase(place, 1 + random() % 3);
      text.insert(std::min(place, text.size()), 1, characters[random() % characters.size()]);
    }
    const std::string error = error_of([&] {
      const Schedule plan = parse_schedule(text, "s");
      EXPECT_EQ(parse_schedule(to_csv(plan), "s").actions, plan.actions);
      simulate(plan, Costs::uniform(plan.virtual_stages(), 1, 1, 1));
      ++valid;
    });
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  EXPECT_GT(valid, 0);
  EXPECT_LT(valid, 4000);
}

}  // namespace
}  // namespace trireme::schedule
