#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/cli/command.hpp"

namespace trireme::cli {
namespace {

struct Section {
  std::string preset;
  std::int64_t layers = 1;
  double rate = 0.5;
  bool bias = true;

  void declare(config::Fields& fields) {
    fields.add("preset", preset, "named values", config::one_of({"", "big"}));
    fields.add("layers", layers, "blocks of the model, and a text so long that it has to be broken",
               config::at_least(1));
    fields.add("rate", rate, "a share", config::in_range(0, 1));
    fields.add("bias", bias, "biases");
  }
};

class Resolve : public testing::Test {
 protected:
  Resolve() { fields_.section("net", section_); }

  void write(const std::string& text) { std::ofstream(file_) << text; }
  void TearDown() override { std::filesystem::remove(file_); }

  void resolve_all(std::vector<std::string> variables, std::vector<Setting> settings,
                   bool with_file) {
    std::vector<char*> pointers;
    pointers.reserve(variables.size() + 1);
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    Sources sources{
        std::move(settings), with_file ? file_ : std::filesystem::path(), pointers.data(), {}};
    sources.preset = [this](config::Fields& fields) {
      if (section_.preset != "big") return;
      fields.from_json({{"net", {{"layers", 2}, {"rate", 0.25}}}}, config::Source::preset,
                       "preset big");
    };
    resolve(fields_, sources);
  }

  std::vector<Setting> take(std::vector<std::string> arguments) {
    rest_ = std::move(arguments);
    return take_settings(fields_, rest_);
  }
  std::string usage_error(const std::vector<std::string>& arguments) {
    try {
      take(arguments);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("trireme-resolve-") +
       testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml");
  Section section_;
  config::Fields fields_;
  std::vector<std::string> rest_;
};

// Each source in turn is the strongest one set.
TEST_F(Resolve, LaterSourcesWin) {
  const std::string environment = "TRIREME_NET_LAYERS=4";
  const auto layers = [&] {
    return std::pair(section_.layers, fields_.find("net.layers")->source);
  };
  resolve_all({}, {}, false);
  EXPECT_EQ(layers(), std::pair(std::int64_t{1}, config::Source::built_in));

  resolve_all({}, {{"net.preset", "big"}}, false);
  EXPECT_EQ(layers(), std::pair(std::int64_t{2}, config::Source::preset));
  EXPECT_EQ(section_.rate, 0.25);
  EXPECT_EQ(fields_.find("net.layers")->origin, "preset big");

  write("[net]\npreset = \"big\"\nlayers = 3\n");
  resolve_all({}, {}, true);
  EXPECT_EQ(layers(), std::pair(std::int64_t{3}, config::Source::file));
  EXPECT_EQ(fields_.find("net.layers")->origin, file_.string() + ":3");

  resolve_all({environment}, {}, true);
  EXPECT_EQ(layers(), std::pair(std::int64_t{4}, config::Source::environment));

  resolve_all({environment}, {{"net.layers", "5"}}, true);
  EXPECT_EQ(layers(), std::pair(std::int64_t{5}, config::Source::command_line));
  EXPECT_EQ(fields_.find("net.layers")->origin, "--net.layers");
  EXPECT_EQ(fields_.find("net.rate")->source, config::Source::preset);
}

// The preset's name may come from a stronger source than values that the preset must not override.
TEST_F(Resolve, APresetFromTheCommandLineStillYieldsToTheFile) {
  write("[net]\nlayers = 7\n");
  resolve_all({}, {{"net.preset", "big"}}, true);
  EXPECT_EQ(section_.layers, 7);
  EXPECT_EQ(section_.rate, 0.25);
}

TEST_F(Resolve, TheLastOfTwoFlagsWins) {
  resolve_all({}, take({"--net.layers", "5", "--net.layers=6"}), false);
  EXPECT_EQ(section_.layers, 6);
}

TEST_F(Resolve, ErrorsNameTheFlag) {
  try {
    resolve_all({}, {{"net.layers", "0"}}, false);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "--net.layers = 0: must be at least 1; use 1 or more");
  }
}

TEST_F(Resolve, TakesItsFlagsAndLeavesTheRest) {
  const auto settings =
      take({"train", "--net.layers", "-3", "--dry-run", "--net.rate=0.5", "--config", "a.b",
            "--x=a.b", "--net.preset=--odd", "--", "--net.layers", "4"});
  ASSERT_EQ(settings.size(), 3U);
  EXPECT_EQ(settings[0].key + "=" + settings[0].text, "net.layers=-3");
  EXPECT_EQ(settings[1].key + "=" + settings[1].text, "net.rate=0.5");
  EXPECT_EQ(settings[2].key + "=" + settings[2].text, "net.preset=--odd");
  EXPECT_EQ(rest_, (std::vector<std::string>{"train", "--dry-run", "--config", "a.b", "--x=a.b",
                                             "--", "--net.layers", "4"}));
}

TEST_F(Resolve, YesNoFlagsNeedNoValue) {
  EXPECT_EQ(take({"--net.bias"})[0].text, "true");
  EXPECT_EQ(take({"--net.bias=off"})[0].text, "off");
  EXPECT_EQ(take({"--net.bias", "No", "x"})[0].text, "No");
  EXPECT_EQ(rest_, std::vector<std::string>{"x"});
  EXPECT_EQ(take({"--net.bias", "folder"})[0].text, "true");
  EXPECT_EQ(rest_, std::vector<std::string>{"folder"});
  EXPECT_EQ(take({"--net.bias", "--net.layers", "2"})[1].text, "2");
}

TEST_F(Resolve, UsageErrors) {
  EXPECT_EQ(usage_error({"--net.layer", "3"}),
            "--net.layer: is not a configuration key; did you mean --net.layers?");
  EXPECT_EQ(usage_error({"--other.thing", "3"}),
            "--other.thing: is not a configuration key; `trireme train --help` lists them");
  EXPECT_EQ(
      usage_error({"--net.layers"}),
      "--net.layers: has no value (integer); write --net.layers VALUE, or --net.layers=VALUE for "
      "one that begins with --");
  EXPECT_TRUE(
      usage_error({"--net.layers", "--net.bias"}).starts_with("--net.layers: has no value"));
}

TEST_F(Resolve, DescribesEveryFieldWithinTheWidth) {
  const std::string text = describe(fields_, 60);
  for (const config::Field& field : fields_.all()) {
    EXPECT_NE(text.find("--" + field.key + "="), std::string::npos) << field.key;
  }
  EXPECT_NE(text.find("[net]\n"), std::string::npos);
  EXPECT_NE(text.find("--net.preset=\"\""), std::string::npos) << text;
  EXPECT_NE(text.find("[big]"), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 60U) << line;
}

std::string parse_error(std::vector<std::string> arguments) {
  try {
    parse(std::move(arguments));
  } catch (const UsageError& error) {
    return std::string("usage: ") + error.what();
  } catch (const ConfigError& error) {
    return std::string("value: ") + error.what();
  }
  return "no error";
}

TEST(Parse, Mistakes) {
  EXPECT_EQ(parse_error({}), "usage: no subcommand is given; `trireme --help` lists them");
  EXPECT_EQ(parse_error({"trian"}), "usage: trian: is not a subcommand; did you mean train?");
  EXPECT_EQ(parse_error({"xyzzy"}),
            "usage: xyzzy: is not a subcommand; `trireme --help` lists them");
  EXPECT_EQ(parse_error({"--verison"}), "usage: --verison: is not a flag; did you mean --version?");
  EXPECT_EQ(parse_error({"train", "--dry-rum"}),
            "usage: train: --dry-rum: is not a flag; did you mean --dry-run?");
  EXPECT_EQ(parse_error({"train", "--layers", "3"}),
            "usage: train: --layers: is not a flag; did you mean --model.layers?");
  EXPECT_EQ(parse_error({"inspect", "--verfy", "x"}),
            "usage: inspect: --verfy: is not a flag; did you mean --verify?");
  EXPECT_EQ(parse_error({"inspect", "a", "b"}),
            "usage: inspect: b: one argument too many; quote a value that has spaces");
  EXPECT_EQ(parse_error({"bench", "gem"}),
            "usage: bench: gem: is not a subcommand; did you mean gemm?");
  EXPECT_EQ(parse_error({"bench", "copy", "--thread", "1"}),
            "usage: bench copy: --thread: is not a flag; did you mean --threads?");
  EXPECT_EQ(
      parse_error({"bench"}),
      "usage: bench: name a part: gemm, copy, attention, collectives, pipeline, io, machine or "
      "step");
  EXPECT_EQ(parse_error({"prepare", "--input", "x"}),
            "usage: prepare: --output is required; see `trireme prepare --help`");
  EXPECT_EQ(
      parse_error({"prepare", "--input", "x", "--output", "y", "--model.layers", "3"}),
      "usage: --model.layers: prepare takes no configuration; train, evaluate, generate, plan "
      "and bench do");
  EXPECT_EQ(parse_error({"train", "--modle.layers", "3"}),
            "usage: --modle.layers: is not a configuration key; did you mean --model.layers?");
  EXPECT_EQ(parse_error({"generate", "--top-p", "0"}),
            "value: --top-p = 0: must be above 0 and at most 1; 1 keeps every token");
  EXPECT_EQ(parse_error({"prepare", "--input", "x", "--output", "y", "--valid-fraction", "2"}),
            "value: --valid-fraction = 2: must be from 0 to 1; nearest: 1");
}

TEST(Parse, AcceptsTheExamples) {
  EXPECT_EQ(parse_error({"prepare", "--input", "a", "b", "--output", "d", "--shard-tokens", "1e6"}),
            "no error");
  const Command train =
      parse({"train", "--model.preset", "tiny", "--config", "run.toml", "--dry-run"});
  ASSERT_EQ(train.settings.size(), 1U);
  EXPECT_TRUE(train.run);
  // Values that are also subcommands are values.
  EXPECT_EQ(parse({"train", "--data.path", "info"}).settings[0].text, "info");
  EXPECT_EQ(
      parse_error({"generate", "--checkpoint", "run", "--prompt", "a b", "--temperature", "0"}),
      "no error");
  for (const char* name :
       {"prepare", "inspect", "train", "evaluate", "generate", "presets", "info"}) {
    EXPECT_TRUE(parse({name, "--help"}).run) << name;
  }
  EXPECT_TRUE(parse({"--version"}).run);
}

}  // namespace
}  // namespace trireme::cli
