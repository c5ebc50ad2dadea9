// Lines, tables and progress for users, and the data gathered for them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/report/progress.hpp"
#include "trireme/report/record.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using testing::HasSubstr;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(StepLine, ReadsAsDocumented) {
  const StepMetrics metrics{.step = 120,
                            .tokens = 1,
                            .loss = 2.34561,
                            .gradient_norm = 0.5123,
                            .learning_rate = 3e-4,
                            .seconds = 1.2341,
                            .tokens_per_second = 12345.4,
                            .mfu = 0.6123};
  EXPECT_EQ(
      step_line(metrics, 2000, 754),
      "step  120/2000  loss 2.3456  norm 0.512  lr 3.0e-04  1.234 s  12345 tok/s  MFU 61.2 %  "
      "eta 12:34");
}

TEST(StepLine, OmitsUnknownValuesAndShowsNonFiniteOnes) {
  const StepMetrics metrics{.step = 5, .loss = nan, .gradient_norm = infinity, .seconds = 2};
  EXPECT_EQ(step_line(metrics, 10, nan),
            "step  5/10  loss nan  norm inf  lr 0.0e+00  2.000 s  0 tok/s");
}

TEST(StepLine, GivesUpColumnsInOrderWhereItDoesNotFit) {
  const StepMetrics metrics{.step = 120,
                            .loss = 2.34561,
                            .gradient_norm = 0.5123,
                            .learning_rate = 3e-4,
                            .seconds = 1.2341,
                            .tokens_per_second = 12345.4,
                            .mfu = 0.6123};
  const auto line = [&](int columns) { return step_line(metrics, 2000, 754, columns); };
  EXPECT_EQ(line(96), line(0));
  EXPECT_EQ(line(95),
            "step  120/2000  loss 2.3456  norm 0.512  1.234 s  12345 tok/s  MFU 61.2 %  eta 12:34");
  EXPECT_EQ(line(79), "step  120/2000  loss 2.3456  1.234 s  12345 tok/s  MFU 61.2 %  eta 12:34");
  EXPECT_EQ(line(60), "step  120/2000  loss 2.3456  1.234 s  12345 tok/s  eta 12:34");
  EXPECT_EQ(line(51), "step  120/2000  loss 2.3456  12345 tok/s  eta 12:34");
  EXPECT_EQ(line(20), "step  120/2000  loss 2.3456  eta 12:34");
}

TEST(DurationText, CountsUpToDays) {
  EXPECT_EQ(duration_text(0), "00:00");
  EXPECT_EQ(duration_text(59.6), "01:00");
  EXPECT_EQ(duration_text(754), "12:34");
  EXPECT_EQ(duration_text(3599), "59:59");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600 + 4 * 60 + 5), "2d 03:04:05");
  for (const double none : {-1.0, nan, infinity, 1e300}) EXPECT_EQ(duration_text(none), "-");
}

TEST(FigureOfMerit, OnlyARealNumberIsAFigure) {
  EXPECT_EQ(figure_of_merit(12345.64), "Figure of Merit (FOM): 12345.6 tokens/s");
  for (const double none : {0.0, -5.0, nan, infinity}) {
    EXPECT_EQ(figure_of_merit(none), "Figure of Merit (FOM): none");
  }
}

TEST(MemoryTable, MarksDifferences) {
  EXPECT_EQ(memory_table({{"parameters", 3 << 20, 3 << 20}, {"stash", 1 << 20, (1 << 20) + 64}}),
            "memory     | predicted MiB | measured MiB |\n"
            "-----------+---------------+--------------+\n"
            "parameters |           3.0 |          3.0 |\n"
            "stash      |           1.0 |          1.0 | ! differs by +64 B\n"
            "total      |           4.0 |          4.0 | ! differs by +64 B\n");
  // A GPU's memory and the host's do not add up to anything.
  EXPECT_EQ(memory_table({{"parameters", 3 << 20, 3 << 20},
                          {"workspace", 0, 1 << 20, true},
                          {"snapshot", 2 << 20, 2 << 20}},
                         true),
            "memory      | predicted MiB | measured MiB |\n"
            "------------+---------------+--------------+\n"
            "parameters  |           3.0 |          3.0 |\n"
            "workspace   |           0.0 |          1.0 | predicted in part\n"
            "snapshot    |           2.0 |          2.0 |\n"
            "on the GPU  |           3.0 |          4.0 | predicted in part\n"
            "on the host |           2.0 |          2.0 |\n");
}

TEST(AsPredicted, IsExactForEveryUse) {
  EXPECT_TRUE(as_predicted({{"parameters", 3, 3}, {"stash", 4, 4}}));
  EXPECT_FALSE(as_predicted({{"parameters", 3, 4}, {"stash", 4, 3}})) << "the sum is the same";
  EXPECT_FALSE(as_predicted({{"parameters", 3, 3}, {"stash", 4, 5}}));
  EXPECT_TRUE(as_predicted({{"parameters", 3, 3}, {"workspace", 4, 5, true}}));
  EXPECT_FALSE(as_predicted({{"parameters", 3, 4}, {"workspace", 4, 5, true}}));
}

TEST(Gather, SectionsOfOneRank) {
  const auto world = comm::make_self_communicator();
  Recorder recorder;
  const Recorder::Clock::time_point begin = Recorder::Clock::now();
  recorder.add("b", 0, begin, begin + std::chrono::seconds(2));
  recorder.add("a", 0, begin, begin + std::chrono::seconds(1));
  recorder.add("c", 0, begin, begin + std::chrono::seconds(1));
  const auto sections = gather_sections(recorder, *world);
  ASSERT_EQ(sections.size(), 3U);
  EXPECT_EQ(sections[0].name, "b");
  EXPECT_EQ(sections[1].name, "a") << "equal times: by name";
  EXPECT_EQ(sections[0].minimum, 2);
  EXPECT_EQ(sections[0].average, 2);
  EXPECT_EQ(sections[0].maximum, 2);
}

TEST(Gather, MemoryShowsUsesThatWerePredictedOrMeasured) {
  const auto world = comm::make_self_communicator();
  device::MemoryLedger ledger;
  ledger.add(device::Use::stash, 100);
  ledger.add(device::Use::stash, -50);
  const auto rows = gather_memory(ledger, {{device::Use::parameters, 7}}, *world);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].name, device::name_of(device::Use::parameters));
  EXPECT_EQ(rows[0].predicted, 7);
  EXPECT_EQ(rows[0].measured, 0);
  EXPECT_EQ(rows[1].measured, 100) << "the peak, not what is held now";
}

TEST(Provenance, HoldsListedEnvironmentVariablesAlone) {
  const auto world = comm::make_self_communicator();
  const std::map<std::string, std::string> set = {
      {"SLURM_NNODES", "2"},   {"OMP_PROC_BIND", "close"},    {"OMPI_MCA_mpi_yield_when_idle", "1"},
      {"SLURM_JWT", "hidden"}, {"TRIREME_API_KEY", "hidden"}, {"OMPI_MCA_orte_hnp_uri", "x"},
      {"NCCL_X", "hidden"},    {"CUDA_X", "hidden"},          {"UNRELATED", "x"}};
  for (const auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
  const json found = provenance(*world, {{"MPI", "4.1"}});
  for (const auto& [name, value] : set) ::unsetenv(name.c_str());
  const json& environment = found.at("environment");
  EXPECT_EQ(environment.at("SLURM_NNODES"), "2");
  EXPECT_EQ(environment.at("OMP_PROC_BIND"), "close");
  EXPECT_EQ(environment.at("OMPI_MCA_mpi_yield_when_idle"), "1");
  EXPECT_EQ(found.dump().find("hidden"), std::string::npos);
  for (const char* absent : {"OMPI_MCA_orte_hnp_uri", "UNRELATED", "PATH", "HOME"}) {
    EXPECT_FALSE(environment.contains(absent)) << absent;
  }
  EXPECT_EQ(found.at("versions"), (json{{"MPI", "4.1"}}));
  EXPECT_EQ(found.at("ranks"), 1);
  EXPECT_THAT(found.at("start").get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
  ASSERT_EQ(found.at("hosts").size(), 1U);
  const json& host = found.at("hosts")[0];
  char name[256] = "";
  ::gethostname(name, sizeof name);
  EXPECT_EQ(host.at("name"), name);
  EXPECT_EQ(host.at("ranks"), 1);
  EXPECT_GT(host.at("cores"), 0);
  EXPECT_GT(host.at("memory_bytes"), 1 << 20);
  EXPECT_FALSE(host.at("cpu").get<std::string>().empty());
}

/// What `work` prints to `out`.
template <class Work>
std::string printed(bool terminal, Work work) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  {
    ProgressLine line(out, terminal);
    work(line);
  }
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressLine, PrintsWholeLinesInALog) {
  EXPECT_EQ(printed(false,
                    [](ProgressLine& line) {
                      line.update("one");
                      line.print("note");
                      line.update("two");
                      line.finish();
                    }),
            "one\nnote\ntwo\n");
}

/// The visible text on a terminal: carriage return and "erase to the end of the line" applied.
std::string shown(const std::string& text) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string& line = lines.back();
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text.compare(i, 3, "\x1b[K") == 0) {
      line.resize(std::min(column, line.size()));
      i += 2;
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = text[i];
    }
  }
  std::string all;
  for (const std::string& line : lines) all += (&line == lines.data() ? "" : "\n") + line;
  return all;
}

TEST(ProgressLine, RewritesOneLineOnATerminal) {
  const std::string text = printed(true, [](ProgressLine& line) {
    line.update("a long line");
    line.update("short");
    line.print("note");
    line.update("last");
    line.finish();
    line.finish();
    line.print("after");
  });
  EXPECT_EQ(shown(text), "note\nlast\nafter\n");
}

TEST(PhaseProgress, ALogGetsEachTenth) {
  const std::string text = printed(false, [](ProgressLine& line) {
    PhaseProgress phase(&line, "evaluate", {});
    for (int i = 1; i <= 40; ++i) phase.show(i / 40.0, std::to_string(i));
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_EQ(text.substr(0, text.find("  eta")), "evaluate  10 %  4");
  EXPECT_THAT(text, HasSubstr("\nevaluate 100 %  40\n"));
}

TEST(PhaseProgress, ATerminalGetsABarThatGoes) {
  const std::string text = printed(true, [](ProgressLine& line) {
    line.update("step 3");
    PhaseProgress phase(&line, "load", {});
    phase.show(0.5, "1 of 2");
  });
  EXPECT_THAT(text, HasSubstr("[############............] load  50 %  1 of 2  eta "));
  EXPECT_EQ(shown(text), "");
}

TEST(PhaseProgress, ShowsNothingBeforeItsDelay) {
  EXPECT_EQ(printed(false,
                    [](ProgressLine& line) {
                      PhaseProgress phase(&line, "load");
                      for (const double share : {-1.0, 0.5, 1.0}) phase.show(share, "");
                    }),
            "");
  PhaseProgress(nullptr, "load", {}).show(1, "to nobody");
}

TEST(ProgressLine, LeavesTheLastLineWhenItEnds) {
  EXPECT_EQ(shown(printed(true, [](ProgressLine& line) { line.update("x"); })), "x\n");
  EXPECT_EQ(printed(true, [](ProgressLine&) {}), "");
}

}  // namespace
}  // namespace trireme::report
