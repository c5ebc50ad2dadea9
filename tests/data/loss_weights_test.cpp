// Loss weights of tokens: prompts that are not to be learned.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "trireme/data/loader.hpp"
#include "trireme/data/tokenizer.hpp"

#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Pair {
  std::string prompt, answer;
};

/// Words without a character that is cut in two.
std::string words(std::size_t size, std::uint32_t seed) {
  std::string text = prose(size, seed);
  if (!text.empty() && text.back() == '\xC3') text.back() = 'e';
  return text;
}

std::string lines_of(const std::vector<Pair>& pairs) {
  std::string lines;
  for (const auto& [prompt, answer] : pairs) {
    lines += nlohmann::json{{"question", prompt}, {"answer", answer}}.dump() + "\n";
  }
  return lines;
}

PrepareOptions options_of(std::int64_t shard_tokens = 1LL << 27, double valid_fraction = 0) {
  PrepareOptions options;
  options.documents = "jsonl:answer";
  options.prompt = "question";
  options.shard_tokens = shard_tokens;
  options.valid_fraction = valid_fraction;
  return options;
}

std::vector<int> all_weights(const Dataset& dataset, SplitName split) {
  const auto reader = dataset.reader(split);
  std::vector<std::byte> weights(static_cast<std::size_t>(reader->tokens()));
  reader->weights(0, weights);
  std::vector<int> found;
  std::ranges::transform(weights, std::back_inserter(found),
                         [](std::byte weight) { return std::to_integer<int>(weight); });
  return found;
}

TEST(LossWeights, PromptsHaveNone) {
  const Scratch scratch;
  const Dataset dataset =
      make_dataset(scratch, "set", lines_of({{"ab", "c"}, {"", "de"}, {"f", ""}}), options_of());
  EXPECT_THAT(all_tokens(dataset, SplitName::train),
              ElementsAre('a', 'b', 'c', 256, 'd', 'e', 256, 'f', 256));
  EXPECT_THAT(all_weights(dataset, SplitName::train), ElementsAre(0, 0, 1, 1, 1, 1, 1, 0, 1));
  EXPECT_TRUE(dataset.reader(SplitName::train)->has_weights());
  dataset.verify();
}

TEST(LossWeights, WithoutPromptsAllAreOne) {
  const Scratch scratch;
  const Dataset dataset = make_dataset(scratch, "set", "some text");
  EXPECT_FALSE(dataset.reader(SplitName::train)->has_weights());
  EXPECT_THAT(all_weights(dataset, SplitName::train), Each(1));
}

/// Over several shards and chunks, both splits, and prompts longer than the pieces that are read.
TEST(LossWeights, FollowTheirTokensThroughShards) {
  const Scratch scratch;
  std::mt19937 random(5);
  std::vector<Pair> pairs;
  std::vector<int> expected;
  for (int i = 0; i < 400; ++i) {
    const std::size_t most = i == 17 ? 2'500'000 : 900;
    pairs.push_back(
        {words(i == 17 ? most : random() % most, random()), words(random() % 500, random())});
    expected.insert(expected.end(), pairs.back().prompt.size(), 0);
    expected.insert(expected.end(), pairs.back().answer.size() + 1, 1);
  }
  const Dataset dataset = make_dataset(scratch, "set", lines_of(pairs), options_of(150'001, 0.02));
  ASSERT_GE(dataset.manifest().train.size(), 4U);
  ASSERT_FALSE(dataset.manifest().valid.empty());
  std::vector<int> found = all_weights(dataset, SplitName::train);
  const std::vector<int> valid = all_weights(dataset, SplitName::valid);
  found.insert(found.end(), valid.begin(), valid.end());
  EXPECT_TRUE(found == expected);
  dataset.verify();
  // Any range, with a cache that is always too small.
  const auto reader = dataset.reader(SplitName::train, make_reader_cache(1));
  for (int i = 0; i < 100; ++i) {
    const std::size_t begin = random() % static_cast<std::size_t>(reader->tokens());
    std::vector<std::byte> part(std::min<std::size_t>(
        random() % 140'000, static_cast<std::size_t>(reader->tokens()) - begin));
    reader->weights(static_cast<std::int64_t>(begin), part);
    for (std::size_t t = 0; t < part.size(); ++t) {
      ASSERT_EQ(std::to_integer<int>(part[t]), expected[begin + t]) << begin << " " << t;
    }
  }
}

/// Both texts of a document are encoded by themselves: no token is part of both.
TEST(LossWeights, NoTokenSpansPromptAndAnswer) {
  const Scratch scratch;
  std::vector<Pair> pairs;
  for (int i = 0; i < 300; ++i) pairs.push_back({words(60, i), words(40, 1000 + i)});
  PrepareOptions options = options_of();
  options.tokenizer = "sentencepiece:320";
  const Dataset dataset = make_dataset(scratch, "set", lines_of(pairs), options);
  const auto tokenizer = load_tokenizer(dataset);
  const std::vector<std::int32_t> tokens = all_tokens(dataset, SplitName::train);
  const std::vector<int> weights = all_weights(dataset, SplitName::train);
  std::size_t at = 0;
  for (const auto& [prompt, answer] : pairs) {
    for (const auto& [text, weight] : {std::pair(&prompt, 0), std::pair(&answer, 1)}) {
      for (const std::int32_t id : tokenizer->encode(*text)) {
        ASSERT_EQ(tokens.at(at), id);
        ASSERT_EQ(weights.at(at), weight);
        ++at;
      }
    }
    ASSERT_EQ(weights.at(at++), 1);  // the end of the document
  }
  EXPECT_EQ(at, tokens.size());
}

/// A weight belongs to its token as a target, not as an input; masks of documents add to it.
TEST(LossWeights, InBatches) {
  const Scratch scratch;
  const Dataset dataset =
      make_dataset(scratch, "set", lines_of({{"ab", "c"}, {"", "de"}, {"f", ""}}), options_of());
  const auto reader = dataset.reader(SplitName::train);
  const Sampler sampler(reader->tokens(), 4, 100, 1, false);
  LoaderOptions options{.micro_batch = 2, .length = 4};
  const Batch batch = make_batch(*reader, sampler, options, {0, 1});
  EXPECT_THAT(batch.targets, ElementsAre('b', 'c', 256, 'd', 'e', 256, 'f', 256));
  EXPECT_THAT(batch.weights, ElementsAre(0, 1, 1, 1, 1, 1, 0, 1));
  options.document_mask = true;
  EXPECT_THAT(make_batch(*reader, sampler, options, {0, 1}).weights,
              ElementsAre(0, 1, 1, 0, 1, 1, 0, 1));
}

TEST(LossWeights, WrongOptionsAndLinesAreExplained) {
  const Scratch scratch;
  const auto message = [&](const std::string& text, auto change) {
    PrepareOptions options = options_of();
    change(options);
    return error_of([&] { make_dataset(scratch, "set", text, options); });
  };
  const auto nothing = [](PrepareOptions&) {};
  const std::string good = lines_of({{"a", "b"}});
  EXPECT_THAT(message(good, [](auto& o) { o.documents = "line"; }),
              HasSubstr("--prompt question: is a field of JSON Lines"));
  EXPECT_THAT(message(good + R"({"answer": "b"})", nothing),
              HasSubstr("set.txt:2: has no field \"question\""));
  EXPECT_THAT(message(good + R"({"answer": "b", "question": ["a"]})", nothing),
              HasSubstr("set.txt:2: field \"question\" is not text"));
  EXPECT_THAT(message(good + R"({"question": "a"})", nothing),
              HasSubstr("set.txt:2: has no field \"answer\""));
  EXPECT_THAT(message(good, [](auto& o) { o.prompt = "answer"; }),
              HasSubstr("--prompt answer: is also the field of --documents"));
  EXPECT_FALSE(fs::exists(scratch / "set"));
}

/// A shard of another hand: its weights are checked as its tokens are.
TEST(LossWeights, OtherValuesAreRefused) {
  const Scratch scratch;
  PrepareOptions options = options_of();
  const Dataset dataset = make_dataset(scratch, "set", lines_of({{"ab", "c"}}), options);
  const fs::path shard = scratch / "set/train-00000.h5";
  {
    const hdf5::Lock lock;
    const hdf5::Handle file(H5Fopen(shard.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const hdf5::Handle weights(H5Dopen2(file.get(), "loss_weights", H5P_DEFAULT), H5Dclose);
    const std::vector<std::uint8_t> values{0, 0, 2, 1};
    ASSERT_GE(
        H5Dwrite(weights.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  }
  const std::string expected = "the loss weight of token 2 is neither 0 nor 1";
  EXPECT_THAT(error_of([&] { all_weights(dataset, SplitName::train); }), HasSubstr(expected));
  EXPECT_THAT(error_of([&] { dataset.verify(); }), HasSubstr(expected));
}

}  // namespace
}  // namespace trireme::data::test
