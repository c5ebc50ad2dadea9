#include "trireme/core/config.hpp"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::config {
namespace {

struct Inner {
  double rate = 0.5;
  void declare(Fields& fields) { fields.add("rate", rate, "a share", in_range(0, 1)); }
};

struct ModelSection {
  std::int64_t layers = 6;
  double epsilon = 1e-5;
  bool bias = true;
  std::string norm = "layernorm";
  std::string note;
  Inner drop;
  std::int64_t last = 1;

  void declare(Fields& fields) {
    fields.add("layers", layers, "blocks", at_least(1));
    fields.add("epsilon", epsilon, "added to the variance", positive());
    fields.add("bias", bias, "biases");
    fields.add("norm", norm, "normalization", one_of({"layernorm", "rmsnorm"}));
    fields.add("note", note, "free text");
    fields.section("drop", drop);
    fields.add("last", last, "declared after a nested section");
  }
};

struct OptimSection {
  double learning_rate = 1e-3;
  void declare(Fields& fields) { fields.add("learning_rate", learning_rate, "peak", positive()); }
};

/// A small program's sections and their fields.
struct Program {
  ModelSection model;
  OptimSection optim;
  Fields fields;

  Program() {
    fields.section("model", model);
    fields.section("optim", optim);
  }
};

struct Config : Program, testing::Test {
  /// The error line that `action` throws.
  template <class Action>
  static std::string error_of(Action action) {
    try {
      action();
    } catch (const AgreedError& error) {
      std::string line = error.what();
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      return line;
    }
    return "no error";
  }
  std::string toml_error(const std::string& text) {
    return error_of([&] { fields.parse_toml(text, "run.toml"); });
  }
  std::string text_error(const std::string& key, const std::string& text) {
    return error_of([&] { fields.at(key, "").set_text(text, Source::command_line, "--" + key); });
  }
  void set_text(const std::string& key, const std::string& text) {
    fields.at(key, "").set_text(text, Source::command_line, "--" + key);
  }
  std::string environment_error(std::vector<std::string> variables) {
    return error_of([&] { read(std::move(variables)); });
  }
  void read(std::vector<std::string> variables) {
    std::vector<char*> pointers;
    pointers.reserve(variables.size() + 1);
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    fields.read_environment(pointers.data());
  }
};

TEST_F(Config, TomlSetsEveryTypeAndRecordsTheLine) {
  fields.parse_toml(
      "# a comment\n[model]\nlayers = 12\nepsilon = 1 # whole number for a number\nbias = false\n"
      "norm = \"rmsnorm\"\ndrop.rate = 0.25\n[optim]\nlearning_rate = 3e-4\n",
      "run.toml");
  EXPECT_EQ(model.layers, 12);
  EXPECT_EQ(model.epsilon, 1.0);
  EXPECT_FALSE(model.bias);
  EXPECT_EQ(model.norm, "rmsnorm");
  EXPECT_EQ(model.drop.rate, 0.25);
  EXPECT_EQ(optim.learning_rate, 3e-4);
  EXPECT_EQ(fields.find("model.layers")->origin, "run.toml:3");
  EXPECT_EQ(fields.find("model.layers")->source, Source::file);
  EXPECT_EQ(fields.find("optim.learning_rate")->origin, "run.toml:9");
  EXPECT_EQ(fields.find("model.last")->source, Source::built_in);
}

TEST_F(Config, TomlErrorsNameFileLineAndRemedy) {
  EXPECT_EQ(toml_error("[model]\n\nlayer = 3\n"),
            "run.toml:3: model.layer: is not a configuration key; did you mean model.layers?");
  EXPECT_EQ(toml_error("[modle]\nlayers = 3\n"),
            "run.toml:2: modle.layers: is not a configuration key; did you mean model.layers?");
  EXPECT_EQ(toml_error("layers = 3\n"),
            "run.toml:1: layers: is not a configuration key; did you mean model.layers?");
  EXPECT_EQ(toml_error("[model]\nlearning_rate = 3\n"),
            "run.toml:2: model.learning_rate: is not a configuration key; did you mean "
            "optim.learning_rate?");
  EXPECT_EQ(
      toml_error("[model]\nzzzzzz = 3\n"),
      "run.toml:2: model.zzzzzz: is not a configuration key; `trireme train --help` lists them");
  EXPECT_EQ(toml_error("[modell]\n"), "run.toml:1: modell: is not a section; did you mean model?");
  EXPECT_EQ(toml_error("model = 3\n"),
            "run.toml:1: model: is a section, not a value; write [model] and its keys below it");
  EXPECT_EQ(toml_error("[model]\nlayers = 0\n"),
            "run.toml:2: model.layers = 0: must be at least 1; use 1 or more");
  EXPECT_EQ(toml_error("[model]\nnorm = \"layrenorm\"\n"),
            "run.toml:2: model.norm = layrenorm: must be one of layernorm, rmsnorm; did you mean "
            "layernorm?");
  EXPECT_EQ(toml_error("[model]\ndrop.rate = 1.5\n"),
            "run.toml:2: model.drop.rate = 1.5: must be from 0 to 1; nearest: 1");
}

TEST_F(Config, TomlTypesAreChecked) {
  const std::string integer =
      "must be an integer of at most 64 bits; write it as 12, 1e6 or 1_000_000";
  const std::string number = "must be a finite number; write it as 0.1, 3e-4 or 12";
  const std::string flag = "must be yes or no; use true or false";
  const std::string at = "run.toml:1: model.";
  EXPECT_EQ(toml_error("model.layers = \"12\""), at + "layers = 12: " + integer);
  EXPECT_EQ(toml_error("model.layers = 1.5"), at + "layers = 1.5: " + integer);
  EXPECT_EQ(toml_error("model.layers = true"), at + "layers = true: " + integer);
  EXPECT_EQ(toml_error("model.layers = 1e300"), at + "layers = 1e+300: " + integer);
  EXPECT_EQ(toml_error("model.epsilon = nan"), at + "epsilon = nan: " + number);
  EXPECT_EQ(toml_error("model.epsilon = inf"), at + "epsilon = inf: " + number);
  EXPECT_EQ(toml_error("model.epsilon = \"0.1\""), at + "epsilon = 0.1: " + number);
  EXPECT_EQ(toml_error("model.bias = 1"), at + "bias = 1: " + flag);
  EXPECT_EQ(toml_error("model.bias = \"yes\""), at + "bias = yes: " + flag);
  EXPECT_EQ(toml_error("model.note = 12"),
            at + "note = 12: must be text in UTF-8; in a file, put it in quotes");
  EXPECT_EQ(toml_error("model.layers = [1]"),
            at + "layers = an array: must be one value (integer); write model.layers = value");
  EXPECT_EQ(toml_error("[model.layers]\n"),
            at + "layers = a table: must be one value (integer); write model.layers = value");
  EXPECT_EQ(toml_error("model.note = 2026-01-02"),
            at + "note = a date or time: must be one value (text); write model.note = value");
  EXPECT_EQ(model.layers, 6);
}

TEST_F(Config, TomlWholeNumbersAreAcceptedAsIntegers) {
  fields.parse_toml("[model]\nlayers = 1e6\nlast = 1_000\n", "run.toml");
  EXPECT_EQ(model.layers, 1000000);
  EXPECT_EQ(model.last, 1000);
}

TEST_F(Config, SyntaxErrorsAndFilesThatCannotBeRead) {
  const std::string syntax = toml_error("[model]\nlayers = = 3\n");
  EXPECT_TRUE(syntax.starts_with("run.toml:2: is not TOML: ")) << syntax;
  EXPECT_TRUE(
      toml_error("[model]\nlayers = 3\nlayers = 4\n").starts_with("run.toml:3: is not TOML: "));
  EXPECT_TRUE(toml_error(std::string("[model]\nnote = \"\xff\"\n")).starts_with("run.toml:"));
  const std::filesystem::path folder = testing::TempDir();
  EXPECT_EQ(error_of([&] { fields.read_toml(folder / "no-such.toml"); }),
            (folder / "no-such.toml").string() +
                ": cannot be read: No such file or directory; name an existing TOML file");
  EXPECT_EQ(error_of([&] { fields.read_toml(folder); }),
            folder.string() + ": is a folder; name a TOML file");
}

TEST_F(Config, ReadsAFile) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "trireme-config-test.toml";
  std::ofstream(path) << "[model]\nlayers = 3\n";
  fields.read_toml(path);
  std::filesystem::remove(path);
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(fields.find("model.layers")->origin, path.string() + ":2");
}

TEST_F(Config, Environment) {
  read({"PATH=/bin", "TRIREME_MODEL_LAYERS=9", "TRIREME_MODEL_DROP_RATE=0.125",
        "TRIREME_MODEL_BIAS=off", "TRIREME_MPIEXEC=mpirun", "TRIREME=1", "TRIREME_MODEL=3",
        "TRIREME_OPTIM_LEARNING_RATE=2"});
  EXPECT_EQ(model.layers, 9);
  EXPECT_EQ(model.drop.rate, 0.125);
  EXPECT_FALSE(model.bias);
  EXPECT_EQ(optim.learning_rate, 2.0);
  EXPECT_EQ(fields.find("model.layers")->origin, "TRIREME_MODEL_LAYERS");
  EXPECT_EQ(fields.find("model.layers")->source, Source::environment);
  EXPECT_EQ(
      environment_error({"TRIREME_MODEL_LAYER=9"}),
      "TRIREME_MODEL_LAYER: is not a field of section model; did you mean TRIREME_MODEL_LAYERS?");
  EXPECT_EQ(
      environment_error({"TRIREME_MODEL_QUITE_ELSE=9"}),
      "TRIREME_MODEL_QUITE_ELSE: is not a field of section model; `trireme train --help` lists "
      "them");
  EXPECT_EQ(
      environment_error({"TRIREME_MODEL_LAYERS=many"}),
      "TRIREME_MODEL_LAYERS: model.layers = many: must be an integer of at most 64 bits; write it "
      "as 12, 1e6 or 1_000_000");
  EXPECT_TRUE(environment_error({"TRIREME_MODEL_LAYERS="}).starts_with("TRIREME_MODEL_LAYERS: "));
}

TEST_F(Config, TextOfIntegers) {
  const std::vector<std::pair<std::string, std::int64_t>> good{{"7", 7},
                                                               {"+7", 7},
                                                               {"1e6", 1000000},
                                                               {"2.5e3", 2500},
                                                               {"1_000_000", 1000000},
                                                               {"12.0", 12},
                                                               {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, value] : good) {
    set_text("model.layers", text);
    EXPECT_EQ(model.layers, value) << text;
  }
  set_text("model.last", "-9223372036854775808");
  EXPECT_EQ(model.last, INT64_MIN);
  for (const char* bad :
       {"", " ", "7 ", " 7", "x", "1.5", "1e-3", "1e400", "nan", "inf", "0x10", "_7", "7_", "1__0",
        "+-7", "9223372036854775808", "1e19", "--7", "1,000"}) {
    EXPECT_NE(text_error("model.layers", bad), "no error") << bad;
  }
}

TEST_F(Config, TextOfNumbersAndFlags) {
  for (const char* bad :
       {"nan", "-nan", "inf", "-inf", "infinity", "1e999", "", "1.2.3", "one", "0x1p3"}) {
    EXPECT_NE(text_error("optim.learning_rate", bad), "no error") << bad;
  }
  set_text("optim.learning_rate", "1_0.5e-1");
  EXPECT_EQ(optim.learning_rate, 1.05);
  for (const char* yes : {"true", "yes", "on", "1", "TRUE", "Yes"}) {
    model.bias = false;
    set_text("model.bias", yes);
    EXPECT_TRUE(model.bias) << yes;
  }
  for (const char* no : {"false", "no", "off", "0", "Off"}) {
    model.bias = true;
    set_text("model.bias", no);
    EXPECT_FALSE(model.bias) << no;
  }
  EXPECT_NE(text_error("model.bias", "maybe"), "no error");
  EXPECT_EQ(text_error("model.layers", "0"),
            "--model.layers = 0: must be at least 1; use 1 or more");
  EXPECT_EQ(text_error("model.note", "\xff"),
            "--model.note = \xff: must be text in UTF-8; in a file, put it in quotes");
  EXPECT_EQ(text_error("model.norm", "a\nb"),
            "--model.norm = a\\nb: must be one of layernorm, rmsnorm; choose one of these");
}

TEST_F(Config, Utf8) {
  for (const char* good : {"", "naïve", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xED\x9F\xBF"}) {
    EXPECT_EQ(text_error("model.note", good), "no error");
  }
  // Overlong forms, surrogates, beyond U+10FFFF, truncated, stray continuation.
  for (const char* bad : {"\xC0\x80", "\xE0\x80\x80", "\xF0\x80\x80\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xE2\x82", "\x80", "\xF5\x80\x80\x80"}) {
    EXPECT_NE(text_error("model.note", bad), "no error");
  }
}

TEST_F(Config, RulesAtTheirBounds) {
  const auto kept = [](const Rule& rule, const Value& value) { return rule.kept(value); };
  EXPECT_TRUE(kept(at_least(1), std::int64_t{1}));
  EXPECT_FALSE(kept(at_least(1), std::int64_t{0}));
  EXPECT_FALSE(kept(at_least(INT64_MAX), std::int64_t{INT64_MAX - 1}));
  EXPECT_FALSE(kept(at_least(1), 0.5));
  EXPECT_FALSE(kept(positive(), 0.0));
  EXPECT_TRUE(kept(positive(), DBL_TRUE_MIN));
  EXPECT_TRUE(kept(non_negative(), 0.0));
  EXPECT_FALSE(kept(non_negative(), -DBL_TRUE_MIN));
  EXPECT_TRUE(kept(in_range(0, 1), 0.0));
  EXPECT_TRUE(kept(in_range(0, 1), 1.0));
  EXPECT_FALSE(kept(in_range(0, 1), std::nextafter(1.0, 2.0)));
  EXPECT_TRUE(kept(below(0, 1), 0.0));
  EXPECT_FALSE(kept(below(0, 1), 1.0));
  EXPECT_FALSE(kept(below(0, 1), std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(kept(one_of({"a"}), std::string("b")));
  EXPECT_TRUE(kept(any(), std::string("b")));
}

TEST_F(Config, AWeakerSourceNeverReplacesAStrongerOne) {
  Field& layers = fields.at("model.layers", "");
  layers.set(std::int64_t{4}, Source::command_line, "--model.layers");
  layers.set(std::int64_t{3}, Source::preset, "preset x");
  EXPECT_EQ(model.layers, 4);
  EXPECT_EQ(layers.origin, "--model.layers");
  layers.set(std::int64_t{5}, Source::command_line, "--model.layers");
  EXPECT_EQ(model.layers, 5);
  EXPECT_THROW(layers.set(std::int64_t{0}, Source::preset, "preset x"), ConfigError);
}

TEST_F(Config, JsonRoundTrip) {
  fields.parse_toml(
      "[model]\nlayers = 9\nepsilon = 0.1\nnote = \"a\\\"b\\\\ \\n \\u0001 é\"\ndrop.rate = 1\n",
      "f");
  const nlohmann::json values = fields.to_json();
  EXPECT_EQ(values["model"]["drop"]["rate"], 1.0);
  Program other;
  other.fields.from_json(nlohmann::json::parse(values.dump()), Source::file, "saved");
  EXPECT_EQ(other.fields.to_json(), values);
  EXPECT_EQ(other.model.note, "a\"b\\ \n \x01 é");
  EXPECT_EQ(other.fields.find("model.layers")->origin, "saved");
}

TEST_F(Config, JsonErrors) {
  const auto error = [&](const char* text) {
    return error_of(
        [&] { fields.from_json(nlohmann::json::parse(text), Source::file, "run.json"); });
  };
  EXPECT_EQ(error(R"({"model": {"layer": 1}})"),
            "run.json: model.layer: is not a configuration key; did you mean model.layers?");
  EXPECT_EQ(error(R"({"model": {"layers": 0}})"),
            "run.json: model.layers = 0: must be at least 1; use 1 or more");
  EXPECT_EQ(
      error(R"({"model": {"layers": 18446744073709551615}})"),
      "run.json: model.layers = 18446744073709551615: must fit 64 bits; use a smaller number");
  EXPECT_EQ(
      error(R"({"model": {"layers": null}})"),
      "run.json: model.layers = null: must be one value (integer); write a value of that type");
  EXPECT_EQ(
      error(R"({"model": {"layers": {}}})"),
      "run.json: model.layers = object: must be one value (integer); write a value of that type");
  EXPECT_EQ(error(R"({"model": 1})"),
            "run.json: model: is not a configuration key; `trireme train --help` lists them");
  EXPECT_EQ(error(R"([1])"),
            "run.json: is not a JSON object; a configuration maps sections to keys");
}

TEST_F(Config, TomlRoundTripWithOrigins) {
  read({"TRIREME_OPTIM_LEARNING_RATE=0.1"});
  fields.parse_toml(
      "[model]\nlayers = 9\nepsilon = 1e-300\nnote = \"# \\\"q\\\" \\\\ \\n\\t\\u007f é\"\n",
      "f.toml");
  set_text("model.last", "7");
  model.bias = false;  // like a run's derived values
  const std::string text = fields.to_toml();
  EXPECT_NE(text.find("layers = 9                          # f.toml:2\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("# TRIREME_OPTIM_LEARNING_RATE\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# --model.last\n"), std::string::npos) << text;
  EXPECT_NE(text.find("norm = \"layernorm\"\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# derived\n"), std::string::npos) << text;
  Program other;
  other.fields.parse_toml(text, "printed");
  EXPECT_EQ(other.fields.to_json(), fields.to_json()) << text;
}

TEST_F(Config, Provenance) {
  fields.parse_toml("[model]\nlayers = 12\n", "run.toml");
  const nlohmann::json all = fields.provenance();
  EXPECT_EQ(all["model.layers"],
            nlohmann::json({{"value", 12}, {"source", "file"}, {"origin", "run.toml:2"}}));
  EXPECT_EQ(all["model.bias"],
            nlohmann::json({{"value", true}, {"source", "built-in"}, {"origin", ""}}));
  EXPECT_EQ(all.size(), fields.all().size());
}

TEST_F(Config, NumbersPrintInTheShortestFormThatReadsBack) {
  EXPECT_EQ(to_string(0.1), "0.1");
  EXPECT_EQ(to_string(3e-4), "3e-04");
  EXPECT_EQ(to_string(10000.0), "10000");
  EXPECT_EQ(to_string(std::int64_t{-12}), "-12");
  EXPECT_EQ(to_string(true), "true");
  EXPECT_EQ(to_string(std::string("x y")), "x y");
  std::mt19937_64 random(1);
  std::vector<double> values{-0.0, DBL_MIN, DBL_TRUE_MIN, DBL_MAX, -DBL_MAX, 1.0 / 3, 1e22, 1e23};
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bits = random();
    double value = 0;
    static_assert(sizeof value == sizeof bits);
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
  }
  struct Plain {
    double number = 0;
    void declare(Fields& fields) { fields.add("number", number, "any"); }
  } plain;
  Fields one;
  one.section("s", plain);
  for (const double value : values) {
    plain.number = 0;
    one.at("s.number", "").set_text(to_string(value), Source::command_line, "");
    EXPECT_EQ(plain.number, value);
    EXPECT_EQ(std::signbit(plain.number), std::signbit(value));
    const std::string text = one.to_toml();
    plain.number = 0;
    Fields again;
    again.section("s", plain);
    again.parse_toml(text, "t");
    EXPECT_EQ(plain.number, value) << text;
    EXPECT_EQ(std::signbit(plain.number), std::signbit(value)) << text;
  }
}

TEST_F(Config, EditDistance) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("abcd", "acbd"), 1U);  // neighbors swapped
  EXPECT_EQ(edit_distance("TRAIN", "train"), 0U);
  EXPECT_EQ(nearest("trian", {"plan", "train", "info"}), "train");
  EXPECT_EQ(nearest("fp16", {"fp32"}), "fp32");
  EXPECT_EQ(nearest("xyzzy", {"train", "info"}), std::nullopt);
  EXPECT_EQ(nearest("ab", {"cd", ""}), std::nullopt);
}

TEST_F(Config, NamesAndDeclarationErrors) {
  EXPECT_EQ(fields.find("model.drop.rate")->environment_name(), "TRIREME_MODEL_DROP_RATE");
  EXPECT_EQ(fields.find("model.layers")->type_name(), "integer");
  EXPECT_EQ(fields.find("model.epsilon")->type_name(), "number");
  EXPECT_EQ(fields.find("model.bias")->type_name(), "yes/no");
  EXPECT_TRUE(fields.find("model.bias")->is_flag());
  EXPECT_EQ(fields.find("model.note")->type_name(), "text");
  EXPECT_EQ(fields.find("model.nothing"), nullptr);
  EXPECT_EQ(fields.sections(), (std::vector<std::string>{"model", "optim"}));
  std::int64_t twice = 1, bad = 0;
  EXPECT_THROW(fields.add("model.layers", twice, "again"), std::exception);
  EXPECT_THROW(fields.add("model.drop_rate", twice, "same variable"), std::exception);
  EXPECT_THROW(fields.add("model.bad", bad, "breaks its own rule", at_least(1)), std::exception);
}

}  // namespace
}  // namespace trireme::config
