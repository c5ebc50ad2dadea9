// Token files in the three formats, written here byte by byte, and malformed ones.
#include <gmock/gmock.h>

#include "trireme/data/tokenizer.hpp"

#include "support.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using namespace test;

/// `value` as `width` little-endian bytes.
std::string le(std::int64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

std::string elements(const std::vector<std::int64_t>& values, int width) {
  std::string bytes;
  for (const std::int64_t value : values) bytes += le(value, width);
  return bytes;
}

std::string llmc(const std::vector<std::int64_t>& tokens, std::int32_t magic = 20240520,
                 std::int32_t version = 1, std::int64_t count = -1) {
  std::string text = le(magic, 4) + le(version, 4) +
                     le(count < 0 ? static_cast<std::int64_t>(tokens.size()) : count, 4);
  text.resize(1024, '\0');
  return text + elements(tokens, magic == 20240520 ? 2 : 4);
}

struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  std::int64_t version = 1, type = 8;
  std::vector<std::int64_t> lengths, offsets, documents, modes;
  std::int64_t sequences = -1, indices = -1;
  std::string text() const {
    const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
    return magic + le(version, 8) + le(type, 1) + le(sequences < 0 ? size(lengths) : sequences, 8) +
           le(indices < 0 ? size(documents) : indices, 8) + elements(lengths, 4) +
           elements(offsets, 8) + elements(documents, 8) + elements(modes, 1);
  }
};

std::vector<std::int64_t> random_tokens(std::size_t count, std::int64_t below, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int64_t>(random() % below);
  return tokens;
}

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

class TokenFiles : public testing::Test {
 protected:
  Dataset prepared(const std::vector<std::string>& names) {
    options.inputs.clear();
    for (const std::string& name : names) options.inputs.push_back(scratch / name);
    options.output = scratch / fmt::format("set-{}", ++sets);
    prepare(options, {});
    return Dataset::open(options.output);
  }
  std::string refused(const std::vector<std::string>& names) {
    std::string message = error_of([&] { prepared(names); });
    EXPECT_FALSE(fs::exists(options.output));
    return message;
  }
  void write(const std::string& name, const std::string& bytes) {
    write_text(scratch / name, bytes);
  }
  static std::vector<std::int64_t> ends(const Dataset& dataset) {
    const auto reader = dataset.reader(SplitName::train);
    return reader->document_ends(0, reader->tokens());
  }

  const Scratch scratch;
  PrepareOptions options{.vocabulary = 50257, .valid_fraction = 0};
  int sets = 0;
};

TEST_F(TokenFiles, LlmcOfBothKinds) {
  const auto small = random_tokens(300'000, 50257, 1), large = random_tokens(1000, 128256, 2);
  write("gpt2.bin", llmc(small));
  EXPECT_EQ(all_tokens(prepared({"gpt2.bin"}), SplitName::train), narrow(small));
  options.vocabulary = 128256;
  write("llama.bin", llmc(large, 20240801, 7));
  const Dataset dataset = prepared({"llama.bin"});
  EXPECT_EQ(all_tokens(dataset, SplitName::train), narrow(large));
  EXPECT_EQ(dataset.manifest().element_bytes, 4U);
  EXPECT_EQ(dataset.manifest().tokenizer, "none");
  EXPECT_EQ(dataset.manifest().end_of_document, std::nullopt);
  dataset.verify();
  EXPECT_THAT(error_of([&] { load_tokenizer(dataset); }), HasSubstr("has tokens and no tokenizer"));
}

TEST_F(TokenFiles, MalformedLlmc) {
  const auto wrong = [&](const std::string& bytes) {
    write("a.bin", bytes);
    options.input_format = "llmc";
    return refused({"a.bin"});
  };
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240520, 2)), HasSubstr("a.bin: is of version 2, only 1"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240801, 1)), HasSubstr("is of version 1, only 7"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240521)), HasSubstr("does not begin with llm.c's header"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}).substr(0, 1023)), HasSubstr("does not begin with llm.c's"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240520, 1, 4)), HasSubstr("its header says 4 tokens of 2"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240520, 1, 2)), HasSubstr("has 1030 bytes"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240520, 1, 0x7FFFFFFF)), HasSubstr("2147483647 tokens"));
  EXPECT_THAT(wrong(llmc({1, 2, 3}, 20240520, 1, 0xFFFFFFFF)), HasSubstr("-1 tokens"));
  EXPECT_THAT(wrong(llmc({})), HasSubstr("0 tokens in all"));
  EXPECT_THAT(wrong(""), HasSubstr("does not begin"));
  EXPECT_THAT(wrong(llmc({1, 2, 50257})), HasSubstr("a.bin: token 2 is 50257, outside"));
  options.vocabulary = 1 << 20;
  EXPECT_THAT(wrong(llmc({1, 0xFFFFFFFF}, 20240801, 7)), HasSubstr("token 1 is 4294967295"));
}

TEST_F(TokenFiles, NanogptIsNamed) {
  const auto tokens = random_tokens(200'001, 65, 3);
  write("train.bin", elements(tokens, 2));
  EXPECT_THAT(refused({"train.bin"}), HasSubstr("train.bin: says nothing of its format; add "
                                                "--input-format nanogpt"));
  options.input_format = "nanogpt";
  options.vocabulary = 65;
  EXPECT_EQ(all_tokens(prepared({"train.bin"}), SplitName::train), narrow(tokens));
  options.vocabulary = 64;
  EXPECT_THAT(refused({"train.bin"}), HasSubstr("is 64, outside the vocabulary of 64"));
  write("odd.bin", elements(tokens, 2) + "x");
  EXPECT_THAT(refused({"odd.bin"}), HasSubstr("no whole number of uint16"));
}

TEST_F(TokenFiles, DocumentsEndAfterTheirToken) {
  options.input_format = "nanogpt";
  options.end_of_document = "9";
  // At the end as in nanoGPT, before each document as in llm.c, and across two files.
  write("a", elements({1, 2, 9, 3, 9}, 2));
  EXPECT_EQ(ends(prepared({"a"})), (std::vector<std::int64_t>{3, 5}));
  write("b", elements({9, 1, 2, 9, 3, 4}, 2));
  EXPECT_EQ(ends(prepared({"b"})), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(ends(prepared({"a", "b"})), (std::vector<std::int64_t>{3, 5, 9, 11}));
  write("c", elements({1, 2, 9, 9, 9, 4, 9, 9}, 2));
  EXPECT_EQ(ends(prepared({"c"})), (std::vector<std::int64_t>{3, 7, 8}));
  options.end_of_document = "";
  EXPECT_EQ(ends(prepared({"a", "b"})), (std::vector<std::int64_t>{5, 11}));
  // Also where a document ends at a read boundary.
  auto many = random_tokens(400'000, 8, 4);
  std::vector<std::int64_t> expected;
  for (const std::int64_t end : {131'072, 131'073, 262'144, 399'999}) {
    many[static_cast<std::size_t>(end) - 1] = 9;
    expected.push_back(end);
  }
  expected.erase(expected.begin() + 1);  // only the end token
  expected.push_back(400'000);
  write("many", elements(many, 2));
  options.end_of_document = "9";
  const Dataset dataset = prepared({"many"});
  EXPECT_EQ(ends(dataset), expected);
  EXPECT_EQ(all_tokens(dataset, SplitName::train), narrow(many));
}

TEST_F(TokenFiles, MegatronOfEveryType) {
  struct Case {
    std::int64_t type;
    int width;
    std::int64_t most;
  };
  for (const Case& c : {Case{1, 1, 256}, Case{3, 2, 32768}, Case{4, 4, 50257}, Case{5, 8, 50257},
                        Case{8, 2, 50257}}) {
    const auto tokens = random_tokens(200'000, c.most, static_cast<std::uint32_t>(c.type));
    Index index{.type = c.type};
    std::int64_t at = 0;
    std::vector<std::int64_t> expected;
    index.documents.push_back(0);
    std::mt19937 random(5);
    while (at < 200'000) {
      const std::int64_t length = std::min<std::int64_t>(200'000 - at, random() % 700);
      index.lengths.push_back(length);
      index.offsets.push_back(at * c.width);
      at += length;
      if (random() % 3 != 0 && at < 200'000) continue;
      index.documents.push_back(static_cast<std::int64_t>(index.lengths.size()));
      if (expected.empty() ? at > 0 : at > expected.back()) expected.push_back(at);
    }
    write("pair.bin", elements(tokens, c.width));
    write("pair.idx", index.text());
    const Dataset dataset = prepared({c.type == 4 ? "pair.idx" : "pair.bin"});
    EXPECT_EQ(all_tokens(dataset, SplitName::train), narrow(tokens)) << c.type;
    EXPECT_EQ(ends(dataset), expected);
  }
}

TEST_F(TokenFiles, MegatronPairsInARow) {
  write("a.bin", elements({1, 2, 3}, 4));
  write("a.idx",
        Index{.type = 4, .lengths = {1, 2}, .offsets = {0, 4}, .documents = {0, 1, 2}}.text());
  write("b.bin", elements({4, 5}, 2));
  Index second{.lengths = {0, 2, 0}, .offsets = {0, 0, 4}, .documents = {0, 1, 1, 3}};
  second.modes = {0, 0, 0};
  write("b.idx", second.text());
  const Dataset dataset = prepared({"a.bin", "a.idx", "b.idx"});
  EXPECT_EQ(all_tokens(dataset, SplitName::train), (std::vector<std::int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(ends(dataset), (std::vector<std::int64_t>{1, 3, 5}));
}

TEST_F(TokenFiles, MalformedMegatron) {
  const std::string tokens = elements({1, 2, 3, 4, 5}, 2);
  const Index good{.lengths = {2, 3}, .offsets = {0, 4}, .documents = {0, 1, 2}};
  const auto wrong = [&](auto change, const std::string& bytes, const std::string& end = "") {
    Index index = good;
    change(index);
    write("m.bin", bytes);
    write("m.idx", index.text() + end);
    options.input_format = "megatron";
    return refused({"m.bin"});
  };
  const auto message = [&](auto change) { return wrong(change, tokens); };
  constexpr std::int64_t huge = std::int64_t{1} << 61;
  EXPECT_THAT(message([](Index& i) { i.magic[0] = 'X'; }), HasSubstr("m.idx: does not begin"));
  EXPECT_THAT(message([](Index& i) { i.version = 2; }), HasSubstr("is of version 2"));
  EXPECT_THAT(message([](Index& i) { i.type = 6; }), HasSubstr("holds real numbers"));
  EXPECT_THAT(message([](Index& i) { i.type = 9; }), HasSubstr("element type 9"));
  EXPECT_THAT(message([](Index& i) { i.type = 2; }), HasSubstr("element type 2"));
  EXPECT_THAT(message([](Index& i) { i.type = 0; }), HasSubstr("element type 0"));
  EXPECT_THAT(message([](Index& i) { i.sequences = 3; }), HasSubstr("do not fit 3 sequences"));
  EXPECT_THAT(message([](Index& i) { i.sequences = huge; }), HasSubstr("do not fit"));
  EXPECT_THAT(message([](Index& i) { i.indices = huge; }), HasSubstr("do not fit"));
  EXPECT_THAT(message([](Index& i) { i.indices = 0; }), HasSubstr("do not fit"));
  // 12·N + 8·D that overflows to the right size.
  EXPECT_THAT(message([](Index& i) { i.sequences = huge + 2, i.indices = 3 - huge / 2; }),
              HasSubstr("do not fit"));
  EXPECT_THAT(wrong([](Index&) {}, tokens, "x"), HasSubstr("do not fit"));
  EXPECT_THAT(wrong([](Index&) {}, tokens, "\x01\x01"), HasSubstr("is not text"));
  EXPECT_THAT(wrong([](Index&) {}, tokens + "x"), HasSubstr("no multiple of 2"));
  EXPECT_THAT(wrong([](Index&) {}, tokens + "xx"), HasSubstr("token 5 of 6"));
  EXPECT_THAT(wrong([](Index&) {}, tokens.substr(2)), HasSubstr("sequence 1: 3 tokens at byte 4"));
  EXPECT_THAT(message([](Index& i) { i.lengths[0] = -1; }), HasSubstr("sequence 0: -1 tokens"));
  EXPECT_THAT(message([](Index& i) { i.lengths[0] = 3; }), HasSubstr("sequence 1"));
  EXPECT_THAT(message([](Index& i) { i.lengths[1] = 0x7FFFFFFF; }), HasSubstr("sequence 1"));
  EXPECT_THAT(message([](Index& i) { i.lengths[1] = 2; }), HasSubstr("token 4 of 5"));
  EXPECT_THAT(message([](Index& i) { i.offsets[0] = 2; }),
              HasSubstr("sequence 0: 2 tokens at byte 2"));
  EXPECT_THAT(message([](Index& i) { i.offsets[1] = 0; }), HasSubstr("sequence 1"));
  EXPECT_THAT(message([](Index& i) { i.offsets[1] = -huge; }), HasSubstr("sequence 1"));
  EXPECT_THAT(message([](Index& i) { i.documents[0] = 1; }), HasSubstr("begins at sequence 1"));
  EXPECT_THAT(message([](Index& i) { i.documents[1] = 3; }), HasSubstr("document 0 ends at"));
  EXPECT_THAT(message([](Index& i) { i.documents = {0, 2, 1}; }), HasSubstr("document 1 ends at"));
  EXPECT_THAT(message([](Index& i) { i.documents = {0, 1}; }), HasSubstr("sequence 1 of 2"));
  EXPECT_THAT(message([](Index& i) { i.documents = {0}; }), HasSubstr("sequence 0 of 2"));
  EXPECT_THAT(wrong([](Index& i) { i.type = 4, i.offsets[1] = 8; }, elements({1, 2, -3, 4, 5}, 4)),
              HasSubstr("m.bin: token 2 is -3"));
  for (const std::size_t cut : {0U, 5U, 33U, 40U, 81U}) {
    write("m.bin", tokens);
    write("m.idx", good.text().substr(0, cut));
    EXPECT_THAT(refused({"m.bin"}), HasSubstr("m.idx: ")) << cut;
  }
  fs::remove(scratch / "m.idx");
  EXPECT_THAT(refused({"m.bin"}), HasSubstr("m.idx: cannot open"));
}

TEST_F(TokenFiles, AFlippedBitIsRefusedOrChangesNoToken) {
  const std::vector<std::int64_t> tokens = {1, 2, 3, 4, 5};
  const std::string index =
      Index{.lengths = {2, 3}, .offsets = {0, 4}, .documents = {0, 1, 2}}.text();
  write("m.bin", elements(tokens, 2));
  int refused = 0, taken = 0;
  for (std::size_t bit = 0; bit < 8 * index.size(); ++bit) {
    std::string changed = index;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    write("m.idx", changed);
    options.input_format = "megatron";
    try {
      EXPECT_EQ(all_tokens(prepared({"m.bin"}), SplitName::train), narrow(tokens)) << bit;
      ++taken;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("m.idx: ")) << bit;
      ++refused;
    }
  }
  EXPECT_LE(taken, 1);  // document 1 may begin at sequence 0
  EXPECT_EQ(refused + taken, 8 * static_cast<int>(index.size()));
}

TEST_F(TokenFiles, OptionsThatDoNotFit) {
  write("a.bin", llmc({1, 2, 3}));
  write("b.txt", "text");
  EXPECT_THAT(refused({"a.bin", "b.txt"}), HasSubstr("is of another format than"));
  const auto with = [&](auto change) {
    const PrepareOptions before = options;
    change(options);
    std::string message = refused({"a.bin"});
    options = before;
    return message;
  };
  EXPECT_THAT(with([](auto& o) { o.vocabulary = 0; }), HasSubstr("need either --tokenizer"));
  EXPECT_THAT(with([](auto& o) { o.vocabulary = -1; }), HasSubstr("--vocabulary -1"));
  EXPECT_THAT(with([](auto& o) { o.vocabulary = 1LL << 31; }), HasSubstr("must be from 1 to"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "bytes"; }), HasSubstr("need either"));
  EXPECT_THAT(with([](auto& o) { o.tokenizer = "bytes", o.vocabulary = 0; }),
              HasSubstr("tokens are there already"));
  EXPECT_THAT(with([](auto& o) { o.end_of_document = "50257"; }), HasSubstr("outside the"));
  EXPECT_THAT(with([](auto& o) { o.end_of_document = "<s>"; }), HasSubstr("is no added token"));
  EXPECT_THAT(with([](auto& o) { o.documents = "line"; }), HasSubstr("is for text"));
  EXPECT_THAT(with([](auto& o) { o.input_format = "jpeg"; }), HasSubstr("must be auto, text"));
  options.input_format = "text";
  EXPECT_THAT(refused({"b.txt"}), HasSubstr("--vocabulary 50257: is for token files"));
}

TEST_F(TokenFiles, ATokenizerIsCopied) {
  const fs::path file = fs::path(TRIREME_SOURCE_DIR) / "tests/reference/tokenizers/gpt2.json";
  options.vocabulary = 0;
  options.tokenizer = "huggingface:" + file.string();
  write("a.bin", llmc({40, 1, 0, 50}));
  const Dataset dataset = prepared({"a.bin"});
  EXPECT_EQ(dataset.manifest().vocabulary, 2004);
  EXPECT_EQ(dataset.manifest().end_of_document, 0);
  EXPECT_EQ(ends(dataset), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(load_tokenizer(dataset)->vocabulary(), 2004);
  write("b.bin", llmc({40, 2004}));
  EXPECT_THAT(refused({"b.bin"}), HasSubstr("token 1 is 2004, outside the vocabulary of 2004"));
}

}  // namespace
}  // namespace trireme::data
