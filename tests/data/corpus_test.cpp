#include "trireme/data/corpus.hpp"

#include <chrono>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.hpp"

namespace trireme::data::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t length = 10;

/// Folders a, b and c of bytes, of 200, 300 and 400 tokens to train on.
class CorpusTest : public testing::Test {
 protected:
  void SetUp() override {
    // A source is named after its folder, whatever the dataset's own name is.
    for (const char name : {'a', 'b', 'c'}) {
      make(std::string(1, name), 100 * (name - 'a' + 2), {.name = "other"});
    }
  }
  Dataset make(const std::string& name, std::size_t tokens, PrepareOptions options = {}) {
    options.valid_fraction = 0;
    return make_dataset(scratch_, name, random_bytes(tokens, static_cast<std::uint32_t>(tokens)),
                        options);
  }
  std::string path(const std::string& name) const { return (scratch_.path() / name).string(); }
  std::string list(const std::string& weights = "0.5 0.3 0.2") const {
    std::istringstream words(weights);
    std::string text, weight;
    for (const char name : {'a', 'b', 'c'}) {
      if (!(words >> weight)) break;
      text += (text.empty() ? "" : ", ") + weight + " " + path(std::string(1, name));
    }
    return text;
  }
  std::string file(const std::string& text) const {
    write_text(scratch_.path() / "blend.toml", text);
    return path("blend.toml");
  }
  Scratch scratch_;
};

TEST_F(CorpusTest, ADatasetAloneIsReadAsItAlwaysWas) {
  Corpus corpus = Corpus::open(path("a"), length);
  EXPECT_FALSE(corpus.is_blend());
  EXPECT_EQ(corpus.sources().front().name, "a");
  const DataConfig config;
  const Windows windows = corpus.windows(config, 5);
  const Sampler sampler(200, length, config.group_mb << 19, 5, true);
  for (std::int64_t n = 0; n < 50; ++n) EXPECT_EQ(windows(n).begin(), sampler.begin(n));
  EXPECT_TRUE(corpus.kept(17).is_null());
}

TEST_F(CorpusTest, AListAndAFileNameTheSameSources) {
  const Corpus of_list = Corpus::open(list(), length);
  const Corpus of_file = Corpus::open(file(R"(
[[source]]
path = "c"
weight = 0.2
[[source]]
path = "./b/"
weight = 0.3
[[source]]
path = "a"
weight = 0.5
)"),
                                      length);
  EXPECT_EQ(of_list.describe(0), "a 50 %, b 30 %, c 20 %");
  EXPECT_EQ(of_list.kept(1000), of_file.kept(1000));
  EXPECT_EQ(of_list.kept(1000).at("given"), json::parse(R"({"a": 500, "b": 300, "c": 200})"));
}

TEST_F(CorpusTest, SamplesAreThoseOfEachSourcesOwnOrder) {
  Corpus corpus = Corpus::open(list(), length);
  const DataConfig config;
  const Windows windows = corpus.windows(config, 5);
  std::map<std::size_t, std::int64_t> next;
  for (std::int64_t n = 0; n < 100; ++n) {
    const std::size_t source = corpus.order().at(n).source;
    const Corpus::Source& own = corpus.sources()[source];
    const Sampler sampler(own.tokens(SplitName::train), length, config.group_mb << 19, 5, true);
    const std::int64_t begin = sampler.begin(next[source]++);
    std::vector<std::int32_t> found(static_cast<std::size_t>(length)), expected = found;
    const Window window = windows(n);
    EXPECT_EQ(window.begin(), begin);
    window.reader->read(window.begin(), found);
    own.dataset.reader(SplitName::train)->read(begin, expected);
    EXPECT_EQ(found, expected) << n;
  }
}

/// What sample `sample` reads.
json read_by(const Windows& windows, std::int64_t sample) {
  const Window window = windows(sample);
  EXPECT_TRUE(window.packed);
  json tokens;
  for (const Piece& piece : window.pieces) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(piece.end - piece.begin));
    window.reader->read(piece.begin, ids);
    tokens.push_back(ids);
  }
  return tokens;
}

TEST_F(CorpusTest, PacksTheDocumentsOfEachSource) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += std::string(static_cast<std::size_t>(i % 13) + 1, 'x') + "\n";
  for (const char* name : {"d", "e"}) make_dataset(scratch_, name, text, {.documents = "line"});
  DataConfig config;
  config.packing = "documents";
  Corpus corpus = Corpus::open(path("d"), length);
  EXPECT_TRUE(corpus.packed(0).is_null()) << "nothing is packed yet";
  const Windows windows = corpus.windows(config, 5);
  for (const std::int64_t cut : {0, 100, 1000}) {
    const json kept = corpus.packed(cut);
    EXPECT_LE(kept.at("d").at("first"), cut);
    EXPECT_EQ(kept.at("d").at("epoch") > 0, cut == 1000);
    Corpus again = Corpus::open(path("d"), length);
    again.resume_packed(kept);
    EXPECT_EQ(again.packed(cut), kept) << "a start without a step keeps it";
    const Windows rest = again.windows(config, 5);
    for (std::int64_t n = cut; n < cut + 20; ++n) EXPECT_EQ(read_by(rest, n), read_by(windows, n));
    EXPECT_EQ(again.packed(cut + 300), corpus.packed(cut + 300));
  }
  // A cursor of other settings, or one that is damaged, is not used: it would shift all samples.
  json other = corpus.packed(1000), damaged = other;
  other["d"]["seed"] = 6;
  damaged["d"]["place"] = 7;
  for (const json& kept : {other, damaged, json(3), json({{"d", 4}})}) {
    Corpus again = Corpus::open(path("d"), length);
    again.resume_packed(kept);
    EXPECT_EQ(read_by(again.windows(config, 5), 1000), read_by(windows, 1000)) << kept;
  }

  Corpus both = Corpus::open("0.5 " + path("d") + ", 0.5 " + path("e"), length);
  const Windows blend = both.windows(config, 5);
  for (std::int64_t n = 0; n < 100; ++n) EXPECT_EQ(read_by(blend, 2 * n), read_by(windows, n));
  EXPECT_EQ(both.packed(600).at("e"), corpus.packed(300).at("d"));
}

TEST_F(CorpusTest, PhasesChangeTheWeightsAtTheirTokens) {
  const Corpus corpus = Corpus::open(file(R"(
[[source]]
path = "a"
[[source]]
path = "b"
[[phase]]
begin = 0
end = 95
weights = {a = 1}
[[phase]]
begin = 95
end = 500
weights = {a = 1, b = 3}
)"),
                                     length);
  // The second phase begins with the first sample that has no token before 95.
  EXPECT_EQ(corpus.kept(10).at("given"), json::parse(R"({"a": 10, "b": 0})"));
  EXPECT_EQ(corpus.kept(50).at("given"), json::parse(R"({"a": 20, "b": 30})"));
  corpus.check_end({}, 50);
  EXPECT_THAT(error_of([&] { corpus.check_end({}, 51); }),
              AllOf(HasSubstr("the last phase ends at 500 tokens"), HasSubstr("510")));
}

TEST_F(CorpusTest, ASourceIsReadAtMostSoOften) {
  const Corpus corpus = Corpus::open(file(R"(
[[source]]
path = "a"
weight = 1
most_epochs = 2
[[source]]
path = "b"
weight = 1
)"),
                                     length);
  const std::int64_t most = 2 * 2 * corpus.samples_of_source(0, {});
  corpus.check_end({}, most);
  EXPECT_THAT(error_of([&] { corpus.check_end({}, most + 2); }),
              AllOf(HasSubstr("source a 2.05 times, at most 2"), HasSubstr("most_epochs")));
}

/// The sources' own samples that a run of `steps` steps of `batch` from `first` takes, in order.
void take(const Corpus& corpus, std::int64_t first, std::int64_t count,
          std::map<std::string, std::vector<std::int64_t>>& taken) {
  for (std::int64_t n = first; n < first + count; ++n) {
    const Blend::Place place = corpus.order().at(n);
    taken[corpus.sources()[place.source].name].push_back(place.sample);
  }
}

TEST_F(CorpusTest, RestartsWithOtherWeightsLoseAndRepeatNothing) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    std::map<std::string, std::vector<std::int64_t>> taken;
    json kept;
    std::int64_t samples = 0;
    std::string before, before_shares;
    for (int start = 0; start < 5; ++start) {
      std::string weights;
      for (std::uint32_t i = 0; i < 2 + random() % 2; ++i) {
        weights += std::to_string(1 + random() % 9) + " ";
      }
      if (start > 0 && random() % 3 == 0) weights = before;
      Corpus corpus = Corpus::open(list(weights), length);
      const std::string note = corpus.resume(samples, kept, "");
      const std::string shares = corpus.describe(samples);
      EXPECT_EQ(note.empty(), start == 0 || shares == before_shares) << note;
      before_shares = shares;
      const auto count = static_cast<std::int64_t>(1 + random() % 40);
      take(corpus, samples, count, taken);
      samples += count;
      kept = corpus.kept(samples);
      before = weights;
    }
    for (const auto& [name, numbers] : taken) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(numbers[i], static_cast<std::int64_t>(i)) << name << ", trial " << trial;
      }
    }
  }
}

TEST_F(CorpusTest, ARestartWithTheSameWeightsGoesOnAsIfThereHadBeenNone) {
  const Corpus whole = Corpus::open(list("5 3 2"), length);
  for (const std::int64_t cut : {1, 7, 10, 33}) {
    Corpus again = Corpus::open(list("0.5 0.3 0.2"), length);
    EXPECT_EQ(again.resume(cut, whole.kept(cut), ""), "");
    for (std::int64_t n = cut; n < cut + 40; ++n)
      EXPECT_EQ(again.order().at(n), whole.order().at(n));
  }
}

/// It was left out when the phase began, and has given before that.
TEST_F(CorpusTest, ASourceThatComesBackWithoutWeightChangesNothing) {
  Corpus both = Corpus::open(list("1 1"), length);
  Corpus one = Corpus::open(list("1"), length);
  EXPECT_NE(one.resume(16, both.kept(16), ""), "");
  Corpus back = Corpus::open("1 " + path("a") + ", 0 " + path("b"), length);
  EXPECT_EQ(back.resume(32, one.kept(32), ""), "");
  EXPECT_EQ(back.kept(40).at("given"), json::parse(R"({"a": 32, "b": 8})"));
}

TEST_F(CorpusTest, ADatasetGrowsIntoABlendAndBack) {
  Corpus corpus = Corpus::open(list(), length);
  EXPECT_EQ(
      corpus.resume(30, nullptr, path("b")),
      "from sample 30 on the blend is a 50 %, b 30 %, c 20 %; a is new and begins at its first "
      "sample; c is new and begins at its first sample");
  EXPECT_EQ(corpus.kept(40).at("given"), json::parse(R"({"a": 5, "b": 33, "c": 2})"));
  // A source that leaves is remembered, and comes back where it was.
  Corpus alone = Corpus::open(path("a"), length);
  alone.resume(40, corpus.kept(40), "");
  EXPECT_EQ(alone.order().at(40), (Blend::Place{0, 5}));
  EXPECT_EQ(alone.kept(60).at("given"), json::parse(R"({"a": 25, "b": 33, "c": 2})"));
  Corpus back = Corpus::open(list("0 1 1"), length);
  back.resume(60, alone.kept(60), "");
  EXPECT_EQ(back.kept(62).at("given"), json::parse(R"({"a": 25, "b": 34, "c": 3})"));
}

TEST_F(CorpusTest, ANameAndDataThatChangeAreSaid) {
  const json kept = Corpus::open(list(), length).kept(20);
  fs::rename(scratch_ / "b", scratch_ / "d");
  Corpus renamed =
      Corpus::open("0.5 " + path("a") + ", 0.3 " + path("d") + ", 0.2 " + path("c"), length);
  EXPECT_EQ(renamed.resume(20, kept, ""),
            "from sample 20 on the blend is a 50 %, c 20 %, d 30 %; b is left out; d is new and "
            "begins at its first sample");
  fs::rename(scratch_ / "c", scratch_ / "b");
  fs::rename(scratch_ / "d", scratch_ / "c");
  Corpus other = Corpus::open(list(), length);
  EXPECT_EQ(
      other.resume(20, kept, ""),
      "source b has 400 training tokens, and 300 before: its samples are other ones; source c "
      "has 300 training tokens, and 400 before: its samples are other ones");
  json old = kept;  // of a version that did not keep them
  old.erase("tokens");
  EXPECT_EQ(other.resume(20, old, ""), "");
}

TEST_F(CorpusTest, ADamagedCursorIsRefused) {
  const json good = Corpus::open(list(), length).kept(20);
  std::vector<json> broken{1, "x", json::array(), json::object()};
  for (const char* key : {"given", "phase_first", "phase_given", "phase_parts"}) {
    for (const json& value : {json(), json(-1), json("1"), json::parse(R"({"a": -1})"),
                              json::parse(R"({"a": 1.5})"), json::parse(R"({"a": "1"})")}) {
      broken.push_back(good);
      broken.back()[key] = value;
    }
  }
  broken.push_back(good);
  broken.back()["given"]["a"] = 11;
  for (const json& kept : broken) {
    Corpus corpus = Corpus::open(list(), length);
    EXPECT_THAT(error_of([&] { corpus.resume(20, kept, ""); }), HasSubstr("is damaged")) << kept;
  }
  Corpus corpus = Corpus::open(list(), length);
  EXPECT_THAT(error_of([&] { corpus.resume(10, good, ""); }), HasSubstr("is damaged"));
}

TEST_F(CorpusTest, BadBlendsAreRefusedInOneLine) {
  const std::string a = "[[source]]\npath = \"a\"\n", b = "[[source]]\npath = \"b\"\n";
  const std::vector<std::pair<std::string, std::string>> files{
      {"", "has no source"},
      {"source = 3", "must be a list of tables"},
      {a + "[[phase]]\nweights = 1", "phase 1: weights: must be a table; write weights = {NAME"},
      {"[[source]]\npath = \"\"\nweight = 1", "path = \"\": must not be empty; write a path"},
      {"source = [3]", "must be a table"},
      {"[[source]]\nweight = 1", "source 1: has no path"},
      {a, "source a has no weight"},
      {a + "weight = \"much\"", "weight = \"much\": must be a finite number"},
      {a + "weight = -1", "weight = -1: must be a finite number, at least 0"},
      {a + "weight = nan", "must be a finite number, at least 0; write a number such as 0.3"},
      {a + "weight = inf", "weight"},
      {a + "weight = 0", "all weights are 0"},
      {a + "weight = 1\nwieght = 2", "wieght: unknown key; did you mean weight?"},
      {a + "weight = 1\n" + a + "weight = 1", "two sources are named a"},
      {a + "weight = 1\n[[phase]]\nweights = {a = 1}", "has weights, and so have sources"},
      {a + b + "[[phase]]\nbegin = 0", "phase 1: has no weights"},
      {a + b + "[[phase]]\nweights = {a = 1, x = 1}", "x: unknown key"},
      {a + b + "[[phase]]\nbegin = 5\nweights = {a = 1}", "the first must begin at 0"},
      {a + b + "[[phase]]\nend = 9\nweights = {a = 1}\n[[phase]]\nbegin = 10\nweights = {b = 1}",
       "begins at 10 tokens, and the one before ends at 9"},
      {a + b + "[[phase]]\nweights = {a = 1}\n[[phase]]\nweights = {b = 1}", "no later"},
      {a + b + "[[phase]]\nbegin = 0.5\nweights = {a = 1}", "must be a number of tokens"},
      {"[[source]\n", "is not TOML"},
  };
  for (const auto& [text, message] : files) {
    EXPECT_THAT(error_of([&, text = text] { Corpus::open(file(text), length); }),
                HasSubstr(message))
        << text;
  }
  EXPECT_THAT(error_of([&] { Corpus::open("0.5 " + path("a") + ", " + path("b"), length); }),
              HasSubstr("is not a weight and a folder"));
  EXPECT_THAT(error_of([&] { Corpus::open("0.5 " + path("a") + ", 1 " + path("d"), length); }),
              HasSubstr("no such folder"));
  make("short", 9);
  EXPECT_THAT(error_of([&] { Corpus::open("1 " + path("a") + ", 1 " + path("short"), length); }),
              AllOf(HasSubstr("source short has 9 tokens"), HasSubstr("takes 11")));
  make("letters", 500, {.tokenizer = "characters"});
  make_dataset(scratch_, "tested", random_bytes(50, 1), {.valid_fraction = 1});
  EXPECT_THAT(error_of([&] { Corpus::open("1 " + path("a") + ", 1 " + path("tested"), length); }),
              AllOf(HasSubstr("source tested has 0 tokens"), HasSubstr("evaluate it by itself")));
  EXPECT_THAT(error_of([&] { Corpus::open("1 " + path("a") + ", 1 " + path("letters"), length); }),
              AllOf(HasSubstr("source letters has tokenizer characters"), HasSubstr("a bytes")));
}

/// Starts do not take longer with more tokens, and little with more sources.
TEST_F(CorpusTest, AThousandSources) {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    const fs::path folder = scratch_.path() / ("s" + std::to_string(i));
    fs::create_directory(folder);
    for (const char* name : {"dataset.json", "train-00000.h5"}) {
      fs::create_hard_link(scratch_.path() / "a" / name, folder / name);
    }
    text += "[[source]]\npath = \"" + folder.filename().string() +
            "\"\nweight = " + std::to_string(1 + i % 7) + "\n";
  }
  const auto begin = std::chrono::steady_clock::now();
  Corpus corpus = Corpus::open(file(text), length);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 10);
  // One process reads from all of them.
  const Windows windows = corpus.windows({}, 1);
  std::vector<std::int32_t> tokens(length);
  for (std::int64_t n = 0; n < 4000; ++n) {
    const Window window = windows(n);
    window.reader->read(window.begin(), tokens);
  }
}

}  // namespace
}  // namespace trireme::data::test
