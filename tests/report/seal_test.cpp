// Seals of a record: what was changed after a run makes it INVALID, whatever it was.
#include "../../src/report/seal.hpp"

#include <cstdlib>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"
#include "trireme/report/record.hpp"

#include "fake_run.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::FakeRun;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trireme::test::read_text;
using trireme::test::write_text;

TEST(Seal, IsTheLastKeyAndCoversWhatIsBefore) {
  for (const std::string& object : {json{{"a", 1}}.dump(), json{{"a", 1}, {"b", "x"}}.dump(2)}) {
    const std::string text = with_seal(object, "before");
    const json read = json::parse(text);
    EXPECT_EQ(read.at("seal"), seal_in(text));
    EXPECT_EQ(read.size(), json::parse(object).size() + 1);
    EXPECT_TRUE(seal_holds(text, "before"));
    EXPECT_FALSE(seal_holds(text, "other"));
    EXPECT_EQ(seal_in(object), "");
    EXPECT_FALSE(seal_holds(object, ""));
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::string other = text;
      ++other[i];
      EXPECT_FALSE(seal_holds(other, "before")) << other;
    }
  }
  EXPECT_EQ(seal_of(""), "2d06800538d394c2") << "XXH3's documented hash of nothing";
}

/// The record of `fake`, written as a run writes it, with all its files.
void write_attempt(const fs::path& folder, const FakeRun& fake) {
  RunRecord record(folder);
  record.write_event(fake.first - 1, "changed", "optim.clip 2 → 1");  // as a resume does
  json run = fake.run_json();
  run["config"]["optim"] = {{"name", "adamw"}, {"learning_rate", 1e-3}, {"clip", 1.0}};
  record.write_run(run);
  const std::int64_t tokens = fake.batch * 64;
  double seconds = 0;
  for (std::int64_t i = 0; i < fake.steps; ++i) {
    const std::int64_t step = fake.first + i;
    const double speed = static_cast<double>(tokens) / fake.seconds_of(i);
    record.write_step({.step = step,
                       .tokens = step * tokens,
                       .loss = fake.loss / static_cast<double>(step),
                       .gradient_norm = 1.5,
                       .learning_rate = 1e-3,
                       .seconds = fake.seconds_of(i),
                       .tokens_per_second = speed,
                       .mfu = speed * 6000 / 1e9});
    seconds += fake.seconds_of(i);
  }
  const std::int64_t last = fake.first + fake.steps - 1;
  record.begin_evaluation(last);
  record.write_evaluation(last, 4.5, 100);
  record.write_event(last, "save", "somewhere");
  if (!fake.whole) return;
  record.write_trace({{{"forward", 0, 10.5, 100}, {"backward", 1, 20, 50}}});
  json summary = fake.summary_json();
  summary["tokens_of_attempt"] = fake.steps * tokens;
  summary["figure_of_merit"] = static_cast<double>(fake.steps * tokens) / seconds;
  summary["loss"] = fake.loss / static_cast<double>(last);
  summary["validation_loss"] = 4.5;
  record.write_summary(summary);
}

class SealedRun : public testing::Test {
 protected:
  /// A run that was killed after step 12 and resumed after step 9.
  void SetUp() override {
    write_attempt(folder_, {.seconds = {0.5, 0.5, 0.25}, .whole = false});
    write_attempt(folder_, {.first = 10, .seconds = {0.5, 0.75, 0.25}});
  }
  std::string everything() const {
    const Report report = make_report({folder_.string()}, {});
    return report_text(report) + report_csv(report) + json_text(report_json(report)) +
           json_text(google_benchmark_json(report));
  }
  std::vector<std::string> faults() const { return read_run(folder_).faults; }

  trireme::test::Scratch scratch_;
  const fs::path folder_ = scratch_ / "run";
  const fs::path first_ = folder_ / "attempts/0001", second_ = folder_ / "attempts/0002";
};

/// Where numbers and strings begin and end in JSON text, or in lines of it with something before.
std::vector<std::pair<std::size_t, std::size_t>> values_in(const std::string& text) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      if (end > at + 1) found.emplace_back(at + 1, end);
      at = end + 1;
    } else if (text.find_first_of("-0123456789", at) == at) {
      const std::size_t end = std::min(text.find_first_not_of("+-.0123456789eE", at), text.size());
      found.emplace_back(at, end);
      at = end;
    } else {
      ++at;
    }
  }
  return found;
}

/// Another number, or another string.
std::string changed(const std::string& value, std::mt19937& random) {
  const bool number = value.find_first_not_of("+-.0123456789eE") == value.npos;
  const std::size_t at = random() % value.size();
  std::string other = value;
  switch (random() % 4) {
    case 0:
      return number ? (value[0] == '-' ? value.substr(1) : "-" + value) : value + "x";
    case 1:
      return value + (number && value.find_first_of(".eE") == value.npos ? "0" : "1");
    default:
      do {
        other[at] = number && other[at] >= '0' && other[at] <= '9'
                        ? static_cast<char>('0' + random() % 10)
                        : static_cast<char>('a' + random() % 26);
      } while (other == value);
      return other;
  }
}

// Every number and every string of every file. The logs of the killed attempt have no seal, since
// they have no end, and give no figure. SEED: other changes.
TEST_F(SealedRun, AnyChangeIsInvalid) {
  ASSERT_THAT(faults(), IsEmpty());
  const std::string before = everything();
  const char* seed = std::getenv("SEED");
  std::mt19937 random(seed == nullptr ? 20261124U : static_cast<unsigned>(std::atoi(seed)));
  std::map<std::string, int> mutations;  // by file
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "attempts")) {
    if (!entry.is_regular_file()) continue;
    const fs::path& file = entry.path();
    const std::string text = read_text(file);
    const bool log = file.extension() != ".json" && file.extension() != ".jsonl";
    const bool sealed = !log || file.parent_path() != first_;
    const auto values = values_in(text);
    for (std::size_t i = 0; i < values.size(); i += log ? 10 : 1) {
      const auto [begin, end] = values[i];
      std::string other = text;
      other.replace(begin, end - begin, changed(text.substr(begin, end - begin), random));
      write_text(file, other);
      const bool valid = faults().empty();
      EXPECT_EQ(valid, !sealed) << file << ": " << other.substr(begin, 30) << " at byte " << begin;
      EXPECT_TRUE(!valid || everything() == before) << file << ", byte " << begin;
      ++mutations[file.filename()];
    }
    write_text(file, text);
  }
  for (const char* file : {"run.json", "metrics.jsonl", "summary.json", "trace.json"}) {
    EXPECT_GE(mutations[file], 20) << file;
  }
  EXPECT_GE(mutations["run.json"] + mutations["metrics.jsonl"] + mutations["summary.json"], 300);
  EXPECT_EQ(everything(), before);
}

TEST_F(SealedRun, NamesTheFileAndTheLine) {
  const auto edit = [](const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = read_text(file);
    text.replace(text.find(from), from.size(), to);
    write_text(file, text);
  };
  edit(second_ / "metrics.jsonl", R"("gradient_norm":1.5)", R"("gradient_norm":1.25)");
  EXPECT_THAT(
      faults(),
      ElementsAre("attempt 0002: run.json or metrics.jsonl:2 is not as it was written; "
                  "restore the file",
                  "attempt 0002: metrics.jsonl is not as it was written; restore the file"));
  edit(second_ / "metrics.jsonl", R"("gradient_norm":1.25)", R"("gradient_norm":1.5)");
  edit(first_ / "metrics.jsonl", R"("loss":2.5)", R"("loss":2.25)");
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("attempt 0001: metrics.jsonl:3 is not as")));
  edit(first_ / "metrics.jsonl", R"("loss":2.25)", R"("loss":2.5)");
  // The killed attempt has no summary: the first line covers its run.json.
  edit(first_ / "run.json", "Some CPU", "Same CPU");
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("attempt 0001: run.json or metrics.jsonl:2")));
  edit(first_ / "run.json", "Same CPU", "Some CPU");
  edit(second_ / "summary.json", "\"measured\": 100", "\"measured\": 100, \"more\": 1");
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("attempt 0002: summary.json is not as it was")));
  edit(second_ / "summary.json", ", \"more\": 1", "");
  edit(second_ / "trace.json", "forward", "foreword");
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("attempt 0002: trace.json is not as it was")));
}

// A line left out, lines in another order, a seal left out, an older format: none hides a change.
TEST_F(SealedRun, LinesCannotBeMoved) {
  const fs::path file = first_ / "metrics.jsonl";
  const std::string text = read_text(file);
  const std::size_t second = text.find('\n') + 1, third = text.find('\n', second) + 1;
  write_text(file, text.substr(0, text.rfind('{')));
  EXPECT_THAT(faults(), IsEmpty()) << "a killed attempt may have ended anywhere";
  const std::string event = text.substr(text.rfind('{'));
  write_text(file, text.substr(0, second) + event + text.substr(second, text.rfind('{') - second));
  EXPECT_THAT(faults(), Contains(HasSubstr("metrics.jsonl:2 is not as it was written")));
  std::string line = text.substr(second, third - second);
  line.replace(line.find(",\"seal\""), line.npos, "}\n");
  write_text(file, text.substr(0, second) + line + text.substr(third));
  EXPECT_THAT(faults(), Contains(HasSubstr("metrics.jsonl:2 has lost its seal")));
  write_text(file, text);
  fs::remove(second_ / "metrics.jsonl");
  EXPECT_THAT(faults(), Contains(HasSubstr("attempt 0002: metrics.jsonl is missing")));
}

// Large files without figures may be removed.
TEST_F(SealedRun, AMissingTraceIsANote) {
  fs::remove(second_ / "trace.json");
  const auto run = read_run(folder_);
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_THAT(run.notes, Contains("attempt 0002: trace.json is missing"));
}

TEST(Totals, AreComputedAgain) {
  const trireme::test::Scratch scratch;
  int count = 0;
  const auto faults = [&](const char* key, const json& value) {
    const fs::path folder = FakeRun{.change = [&](json&, json& summary) {
                              summary[key] = value;
                            }}.write(scratch / std::to_string(++count));
    return read_run(folder).faults;
  };
  EXPECT_THAT(faults("figure_of_merit", 1024), IsEmpty());
  EXPECT_THAT(faults("figure_of_merit", 1025),
              ElementsAre("attempt 0001: summary.json: figure_of_merit is 1025, and its steps give "
                          "1024"));
  EXPECT_THAT(faults("tokens_of_attempt", 1), ElementsAre(HasSubstr("tokens_of_attempt is 1")));
  EXPECT_THAT(faults("loss", 4), ElementsAre(HasSubstr("loss is 4, and its steps give 5")));
  EXPECT_THAT(faults("validation_loss", 5), ElementsAre(HasSubstr("validation_loss is 5")));
  const fs::path folder = FakeRun{}.write(scratch / "steps");
  const fs::path metrics = folder / "attempts/0001/metrics.jsonl";
  const std::string text = read_text(metrics);
  const auto fault = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.rfind(from), from.size(), to);
    write_text(metrics, other);
    return read_run(folder).faults;
  };
  EXPECT_THAT(fault("\"tokens\":6144", "\"tokens\":6145"),
              ElementsAre(HasSubstr("step 12: tokens is 6145, and its steps give 6144")));
  EXPECT_THAT(
      fault("\"seconds\":0.5", "\"seconds\":0.25"),
      ElementsAre(HasSubstr("step 12: tokens_per_second is 1024, and its steps give 2048")));
}

// Records of before there were seals.
TEST(Seal, OldRecordsAreReadWithANote) {
  const trireme::test::Scratch scratch;
  const auto run = read_run(FakeRun{}.write(scratch / "run"));
  EXPECT_THAT(run.faults, IsEmpty());
  EXPECT_THAT(run.notes, Contains(HasSubstr("is not sealed")));
  const auto claims = [](json& record, json&) { record["format"] = 3; };
  EXPECT_THAT(read_run(FakeRun{.change = claims}.write(scratch / "claims")).faults,
              Contains(HasSubstr("metrics.jsonl:1 has lost its seal")));
}

}  // namespace
}  // namespace trireme::report
