#include "trireme/data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::HasSubstr;

/// A dataset over `text` with the given kind of tokenizer.
std::unique_ptr<Tokenizer> tokenizer_for(const Scratch& scratch, const std::string& kind,
                                         const std::string& text, const std::string& documents) {
  PrepareOptions options;
  options.tokenizer = kind;
  options.documents = documents;
  const Dataset dataset = make_dataset(scratch, "set", text, options);
  return load_tokenizer(dataset);
}

/// Byte strings that have broken tokenizers: spaces everywhere, NUL, U+2581, spelled-out control
/// tokens, broken and overlong UTF-8, surrogates, noncharacters, long words.
std::vector<std::string> nasty() {
  std::vector<std::string> texts = {"",
                                    " ",
                                    "   leading and  double   and trailing   ",
                                    "\n\n\n",
                                    "a\r\n\tb\n c",
                                    std::string("nul\0nul", 7),
                                    std::string(3, '\0'),
                                    "\xE2\x96\x81",
                                    "\xE2\x96\x81the \xE2\x96\x81 oar\xE2\x96\x81",
                                    "\xE2\x96",
                                    "\xEF\xBF\xBD",
                                    "\xFF\xFE\xFF",
                                    "\xC0\xAF \xC0\x80",
                                    "\xED\xA0\x80\xED\xBF\xBF",
                                    "\xF4\x90\x80\x80",
                                    "\xF0\x9F\x98\x80 caf\xC3\xA9 e\xCC\x81 \xEF\xAC\x81",
                                    "\xEF\xBB\xBF bom",
                                    "<s></s><unk><0x41> <pad>",
                                    "the rowers\xC3 the"};
  texts.push_back(std::string(70'000, 'x'));
  texts.push_back(std::string(140'000, '\xE9'));
  std::string wide;
  while (wide.size() < 140'000) wide += "\xE6\xBC\xA2";
  texts.push_back("ab" + wide);
  return texts;
}

class RoundTrip : public testing::TestWithParam<std::string> {};

TEST_P(RoundTrip, EveryByteStringRoundTrips) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_for(scratch, GetParam(), prose(60'000, 1), "line");
  for (const std::string& text : nasty()) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << text.substr(0, 80);
  }
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    // Random bytes, prose, and prose with random bytes inserted.
    const auto size = static_cast<std::size_t>(random() % 400);
    std::string text = i % 3 == 0 ? random_bytes(size, random()) : prose(size, random());
    if (i % 3 == 2) {
      for (std::size_t n = 0; n < size / 20; ++n)
        text[random() % size] = static_cast<char>(random());
    }
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    for (const std::int32_t id : ids) EXPECT_LT(id, tokenizer->vocabulary());
  }
}

TEST_P(RoundTrip, StablePrefixesEncodeAsTheWhole) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_for(scratch, GetParam(), prose(60'000, 1), "file");
  std::string text = prose(200'000, 3) + std::string(150'000, 'y') + prose(1000, 4);
  for (const std::string& piece : nasty()) text += piece;
  const std::vector<std::int32_t> whole = tokenizer->encode(text);
  for (const std::size_t step : {std::size_t{1} << 10, std::size_t{99'991}}) {
    std::string pending;
    std::vector<std::int32_t> ids;
    for (std::size_t at = 0; at < text.size(); at += step) {
      pending += text.substr(at, step);
      pending.erase(0, tokenizer->encode_stable(pending, ids));
      EXPECT_LE(pending.size(), std::size_t{128} << 10);
    }
    const auto rest = tokenizer->encode(pending);
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RoundTrip, testing::Values("bytes", "sentencepiece:400"),
                         [](const auto& info) { return info.param.substr(0, 5); });

/// Text that spells out the model's own control and byte tokens must neither break training nor
/// decode differently.
TEST(SentencePiece, TextThatLooksLikeControlTokens) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += "<s> </s> <unk> <0x41> <0x0A>s\xE2\x96\x81t xy" + std::to_string(i % 7) + "\n";
  }
  const auto tokenizer = tokenizer_for(scratch, "sentencepiece:276", text, "file");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

/// The cache of words and the segmentation must give the library's own results.
TEST(SentencePiece, AgreesWithTheLibraryOnPlainLines) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_for(scratch, "sentencepiece:450", prose(60'000, 5), "file");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load((scratch / "set/tokenizer.model").string()).ok());
  std::mt19937 random(6);
  for (int i = 0; i < 200; ++i) {
    std::string text = prose(random() % 300, random());
    for (int n = 0; n < 5 && !text.empty(); ++n) {
      std::size_t at = random() % text.size();
      while (at > 0 && (text[at] & 0x80) != 0) --at;  // not inside the two bytes of an é
      text.insert(at, i % 2 == 0 ? " " : "q7\n");
    }
    while (!text.empty() && (text.back() & 0x80) != 0) text.pop_back();
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    EXPECT_EQ(tokenizer->encode(text), expected) << text;
  }
}

TEST(SentencePiece, TrainingIsDeterministicAndCompresses) {
  const Scratch first;
  const Scratch second;
  const std::string text = prose(60'000, 7);
  const auto tokenizer = tokenizer_for(first, "sentencepiece:400", text, "line");
  tokenizer_for(second, "sentencepiece:400", text, "line");
  EXPECT_EQ(read_text(first / "set/tokenizer.model"), read_text(second / "set/tokenizer.model"));
  EXPECT_EQ(tokenizer->vocabulary(), 400);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 3);
}

TEST(SentencePiece, VocabularySizesThatDoNotFitTheText) {
  const Scratch scratch;
  const std::string large =
      error_of([&] { tokenizer_for(scratch, "sentencepiece:50000", prose(20'000, 8), "file"); });
  EXPECT_THAT(large, HasSubstr("sentencepiece:50000: this text yields at most "));
  const std::string small =
      error_of([&] { tokenizer_for(scratch, "sentencepiece:100", prose(20'000, 8), "file"); });
  EXPECT_THAT(small, HasSubstr("sentencepiece:100: this text needs at least "));
  // The numbers that the messages suggest are accepted.
  for (const std::string& message : {large, small}) {
    const std::size_t at = message.find("; use ") + 6;
    const std::string offer = message.substr(at, message.find(' ', at) - at);
    const auto tokenizer = tokenizer_for(scratch, offer, prose(20'000, 8), "file");
    EXPECT_EQ(std::to_string(tokenizer->vocabulary()), offer.substr(14));
    fs::remove_all(scratch / "set");
  }
  EXPECT_THAT(error_of([&] { tokenizer_for(scratch, "sentencepiece:300", "\xFF\xFE", "file"); }),
              HasSubstr("holds no line of UTF-8 text"));
  EXPECT_FALSE(fs::exists(scratch / "set"));
}

/// Trains with the library itself, with one setting that loses text, and expects a refusal.
std::string refusal(const Scratch& scratch, const std::string& key, const std::string& value) {
  write_text(scratch / "corpus.txt", prose(20'000, 9));
  std::unordered_map<std::string, std::string> settings = {
      {"minloglevel", "3"},
      {"input", (scratch / "corpus.txt").string()},
      {"model_prefix", (scratch / "own").string()},
      {"model_type", "unigram"},
      {"vocab_size", "300"},
      {"hard_vocab_limit", "false"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"byte_fallback", "true"}};
  settings[key] = value;
  EXPECT_TRUE(sentencepiece::SentencePieceTrainer::Train(settings).ok());
  return error_of([&] {
    tokenizer_for(scratch, "sentencepiece:" + (scratch / "own.model").string(), "a b", "file");
  });
}

TEST(SentencePiece, ModelsThatLoseTextAreRefused) {
  const Scratch scratch;
  EXPECT_THAT(refusal(scratch, "normalization_rule_name", "nmt_nfkc"), HasSubstr("normalization"));
  EXPECT_THAT(refusal(scratch, "add_dummy_prefix", "true"), HasSubstr("add_dummy_prefix"));
  EXPECT_THAT(refusal(scratch, "remove_extra_whitespaces", "true"),
              HasSubstr("remove_extra_whitespaces"));
  EXPECT_THAT(refusal(scratch, "byte_fallback", "false"), HasSubstr("byte_fallback"));
  // A good model followed by normalizer_spec { escape_whitespaces: false }: fields merge.
  const auto use_own = [&] {
    tokenizer_for(scratch, "sentencepiece:" + (scratch / "own.model").string(), "a b", "file");
  };
  EXPECT_THAT(refusal(scratch, "add_dummy_prefix", "true"), HasSubstr("add_dummy_prefix"));
  const std::string model = read_text(scratch / "own.model");
  write_text(scratch / "own.model", model + std::string("\x1A\x04\x18\x00\x28\x00", 6));
  EXPECT_THAT(error_of(use_own), HasSubstr("escape_whitespaces"));
  write_text(scratch / "own.model", model + std::string("\x1A\x02\x18\x00", 4));
  EXPECT_NO_THROW(use_own());
  fs::remove_all(scratch / "set");
  write_text(scratch / "junk.model", random_bytes(3000, 1));
  const std::string junk = error_of([&] {
    tokenizer_for(scratch, "sentencepiece:" + (scratch / "junk.model").string(), "a b", "file");
  });
  EXPECT_THAT(junk, HasSubstr("junk.model: is not a SentencePiece model"));
  EXPECT_THAT(error_of([&] { tokenizer_for(scratch, "sentencepiece:none.model", "a b", "file"); }),
              HasSubstr("none.model: cannot open: No such file"));
}

/// A unigram model with </s>, <s> and pieces with inner spaces encodes whole lines.
TEST(SentencePiece, LoadedUnigramModelRoundTrips) {
  const Scratch scratch;
  write_text(scratch / "corpus.txt", prose(20'000, 10));
  ASSERT_TRUE(
      sentencepiece::SentencePieceTrainer::Train(
          std::unordered_map<std::string, std::string>{{"minloglevel", "3"},
                                                       {"input", (scratch / "corpus.txt").string()},
                                                       {"model_prefix", (scratch / "own").string()},
                                                       {"model_type", "unigram"},
                                                       {"vocab_size", "330"},
                                                       {"user_defined_symbols", "of the,x y z"},
                                                       {"split_by_whitespace", "false"},
                                                       {"normalization_rule_name", "identity"},
                                                       {"add_dummy_prefix", "false"},
                                                       {"remove_extra_whitespaces", "false"},
                                                       {"byte_fallback", "true"}})
          .ok());
  const auto tokenizer = tokenizer_for(scratch, "sentencepiece:" + (scratch / "own.model").string(),
                                       prose(5000, 11), "line");
  for (const std::string& text : nasty()) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("of the x y z of the sea")),
            "of the x y z of the sea");
}

TEST(Characters, OnlyBytesThatOccur) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_for(scratch, "characters", "hello\nworld\xC3\xA9", "file");
  EXPECT_EQ(tokenizer->kind(), "characters");
  EXPECT_EQ(tokenizer->vocabulary(), 10);  // \n d e h l o r w and two bytes
  EXPECT_EQ(tokenizer->encode("\nd\xC3\xA9"), (std::vector<std::int32_t>{0, 1, 9, 8}));
  EXPECT_EQ(tokenizer->decode({3, 2, 4, 4, 5}), "hello");
  EXPECT_THAT(error_of([&] { tokenizer->encode("hex"); }), HasSubstr("byte 2 (0x78, 'x')"));
  EXPECT_THAT(error_of([&] { tokenizer->decode({10}); }),
              HasSubstr("outside the vocabulary of 10"));
}

TEST(Bytes, EndOfDocumentDecodesToNothing) {
  const Scratch scratch;
  const auto one = tokenizer_for(scratch, "bytes", "one file", "file");
  EXPECT_EQ(one->vocabulary(), 256);
  EXPECT_THROW(one->decode({256}), Error);
  EXPECT_THROW(one->decode({-1}), Error);
  fs::remove_all(scratch / "set");
  const auto lines = tokenizer_for(scratch, "bytes", "two\nlines", "line");
  EXPECT_EQ(lines->vocabulary(), 257);
  EXPECT_EQ(lines->decode({'a', 256, 'b'}), "ab");
}

}  // namespace
}  // namespace trireme::data::test
