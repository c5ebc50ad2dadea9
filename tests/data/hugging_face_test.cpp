// tokenizer.json against the results of the `tokenizers` package on ten thousand strings
// (tests/reference/tokenizers), and refused files.
#include <cstring>
#include <map>

#include <gmock/gmock.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "trireme/core/files.hpp"
#include "trireme/data/tokenizer.hpp"

#include "../../src/data/hugging_face.hpp"
#include "../../src/data/tokenizers.hpp"
#include "support.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using namespace test;

const fs::path golden = fs::path(TRIREME_SOURCE_DIR) / "tests/reference/tokenizers";

std::unique_ptr<Tokenizer> tokenizer(const std::string& name) {
  return hugging_face_tokenizer(read_text(golden / (name + ".json")), name).tokenizer;
}

template <class T>
T take(std::string_view& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

const std::vector<std::string>& golden_strings() {
  static const std::vector<std::string> strings = [] {
    const std::string all = read_text(golden / "strings.bin");
    std::vector<std::string> list;
    for (std::string_view rest = all; !rest.empty();) {
      const auto size = take<std::uint32_t>(rest);
      list.emplace_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    return list;
  }();
  return strings;
}

std::uint64_t fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t state = 0xCBF29CE484222325;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      state = (state ^ (static_cast<std::uint32_t>(id) >> shift & 0xFFU)) * 0x100000001B3;
    }
  }
  return state;
}

/// UTF-8 by the definition, independent of the program's reader.
std::string utf8(std::uint32_t c) {
  const auto unit = [](std::uint32_t bits) { return static_cast<char>(bits); };
  if (c < 0x80) return {unit(c)};
  if (c < 0x800) return {unit(0xC0 | c >> 6), unit(0x80 | (c & 63))};
  if (c < 0x10000) {
    return {unit(0xE0 | c >> 12), unit(0x80 | (c >> 6 & 63)), unit(0x80 | (c & 63))};
  }
  return {unit(0xF0 | c >> 18), unit(0x80 | (c >> 12 & 63)), unit(0x80 | (c >> 6 & 63)),
          unit(0x80 | (c & 63))};
}

// By code point: 0 other, 1 \p{L}, 2 \p{N}, 3 \s, 4 unassigned, as in the package.
constexpr std::uint8_t unassigned = 4;
std::vector<std::uint8_t> golden_classes() {
  const std::string all = read_text(golden / "classes.bin");
  std::vector<std::uint8_t> classes(0x110000);
  for (std::string_view rest = all; !rest.empty();) {
    const auto run = take<std::uint32_t>(rest);
    std::fill(classes.begin() + (run >> 3), classes.end(), static_cast<std::uint8_t>(run & 7U));
  }
  return classes;
}

/// Code points that the library's Unicode classifies differently from the package's.
std::vector<bool> other_classes() {
  const std::vector<std::uint8_t> classes = golden_classes();
  SplitPattern patterns[] = {SplitPattern(R"(\p{L})", ""), SplitPattern(R"(\p{N})", ""),
                             SplitPattern(R"(\s)", "")};
  std::vector<bool> differs(classes.size());
  for (std::uint32_t c = 0; c < classes.size(); ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::uint8_t found = 0;
    for (std::uint8_t kind = 0; kind < 3; ++kind) {
      if (patterns[kind].find(utf8(c), true).result == SplitPattern::Result::match) {
        found = static_cast<std::uint8_t>(kind + 1);
      }
    }
    differs[c] = found != (classes[c] == unassigned ? 0 : classes[c]);
  }
  return differs;
}

TEST(HuggingFace, UnicodeClassesMatchThePackage) {
  // A library of a later Unicode may only assign code points that were unassigned.
  const std::vector<std::uint8_t> classes = golden_classes();
  const std::vector<bool> differs = other_classes();
  std::size_t count = 0;
  for (std::size_t c = 0; c < differs.size(); ++c) {
    if (!differs[c]) continue;
    ++count;
    EXPECT_EQ(classes[c], unassigned) << std::hex << c;
  }
  char version[64];
  ASSERT_LT(pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, nullptr), 64);
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  EXPECT_LT(count, std::string(version) == "14.0.0" ? 1 : 20'000);
  EXPECT_EQ(std::count(classes.begin(), classes.end(), 3), 25);
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, TenThousandStrings) {
  const auto subject = tokenizer(GetParam());
  const std::string all = read_text(golden / (std::string(GetParam()) + ".ids"));
  const std::vector<bool> differs = other_classes();
  ASSERT_EQ(golden_strings().size(), 10'000);
  ASSERT_EQ(all.size(), 12 * golden_strings().size());
  std::string_view rest = all;
  std::size_t wrong = 0, compared = 0;
  for (const std::string& text : golden_strings()) {
    const auto count = take<std::uint32_t>(rest);
    const auto hash = take<std::uint64_t>(rest);
    const std::vector<std::int32_t> ids = subject->encode(text);
    EXPECT_EQ(subject->decode(ids), text);
    bool same_unicode = true;
    for (std::size_t i = 0; i < text.size(); i += utf8_length(std::string_view(text).substr(i))) {
      std::uint32_t c = static_cast<std::uint8_t>(text[i]);
      const std::size_t length = utf8_length(std::string_view(text).substr(i));
      ASSERT_GT(length, 0);
      if (length > 1) c &= 0x7FU >> length;
      for (std::size_t k = 1; k < length; ++k) {
        c = c << 6 | (static_cast<std::uint8_t>(text[i + k]) & 63U);
      }
      same_unicode = same_unicode && !differs[c];
    }
    if (!same_unicode) continue;
    ++compared;
    if (ids.size() == count && fnv1a(ids) == hash) continue;
    if (++wrong <= 10) ADD_FAILURE() << "other ids for: " << testing::PrintToString(text);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(compared, 9'000);
}

TEST_P(Parity, PiecesOfAStreamGiveTheSameTokens) {
  const auto subject = tokenizer(GetParam());
  std::string text;
  for (std::size_t i = 0; i < 3000; ++i) {
    text += golden_strings()[i];
    if (i % 10 == 0) text += random_bytes(i % 7, static_cast<std::uint32_t>(i));
  }
  // Longer than the longest window, of one pre-token and of many.
  text += std::string(200'000, 'a') + std::string(150'000, ' ') + "b" + std::string(100'000, '\n');
  text += prose(100'000, 3);
  const std::vector<std::int32_t> whole = subject->encode(text);
  EXPECT_EQ(subject->decode(whole), text);
  std::mt19937 random(1);
  for (const std::size_t most : {std::size_t{3000}, std::size_t{40'000}, std::size_t{1} << 20}) {
    std::vector<std::int32_t> ids;
    std::string pending;
    std::size_t longest = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t part = std::min<std::size_t>(text.size() - at, 1 + random() % most);
      pending += text.substr(at, part);
      at += part;
      if (at == text.size()) break;
      pending.erase(0, subject->encode_stable(pending, ids));
      longest = std::max(longest, pending.size());
    }
    const std::vector<std::int32_t> last = subject->encode(pending);
    ids.insert(ids.end(), last.begin(), last.end());
    EXPECT_TRUE(ids == whole) << most;
    EXPECT_LE(longest, 128U << 10);
  }
}

TEST_P(Parity, EveryCutOfAShortTextGivesTheSameTokens) {
  const auto subject = tokenizer(GetParam());
  for (const std::string text :
       {"I'll   see\r\n\r\n  you'\xC5\xBF 1234567<tool>cal<tool>call é̂ \xF0\x9F\x9A\xA3\xF0\x9F x",
        "a<|endoftext|>  <|end_of_text|>'s\xE0\xA0 b\xFF\xFE  \n \xC2\xA0 \xE3\x80\x80 end"}) {
    const std::vector<std::int32_t> whole = subject->encode(text);
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      std::vector<std::int32_t> ids;
      std::string pending = text.substr(0, cut);
      pending.erase(0, subject->encode_stable(pending, ids));
      pending += text.substr(cut);
      const std::vector<std::int32_t> last = subject->encode(pending);
      ids.insert(ids.end(), last.begin(), last.end());
      EXPECT_EQ(ids, whole) << cut;
    }
  }
}

TEST_P(Parity, BytesThatAreNotUtf8RoundTrip) {
  const auto subject = tokenizer(GetParam());
  for (const std::string& text :
       {std::string("\xFF"), std::string("a\xC3"), std::string("\xED\xA0\x80 \xF4\x90\x80\x80"),
        std::string("\xE2\x82 \xC0\xAF\0x", 7), random_bytes(20'000, 7)}) {
    EXPECT_EQ(subject->decode(subject->encode(text)), text);
  }
  // Each is the token of one byte, and the text beside it is encoded separately.
  std::vector<std::int32_t> apart = subject->encode("the sea");
  const std::vector<std::int32_t> byte = subject->encode("\xFF"), behind = subject->encode(" and");
  EXPECT_EQ(byte.size(), 1);
  apart.insert(apart.end(), byte.begin(), byte.end());
  apart.insert(apart.end(), behind.begin(), behind.end());
  EXPECT_EQ(subject->encode("the sea\xFF and"), apart);
}

INSTANTIATE_TEST_SUITE_P(Files, Parity, testing::Values("gpt2", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HuggingFace, CommonPatternsAreAccepted) {
  // Of GPT-4o, Qwen 2 and relatives of Code Llama; only the first byte string that they split is
  // checked.
  for (
      const char* pattern :
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}) {
    SplitPattern subject(pattern, "here");
    const SplitPattern::Found found = subject.find("Triremes 12", true);
    EXPECT_EQ(found.end - found.begin, 8);
  }
}

TEST(HuggingFace, UnsupportedPatternsAreRefused) {
  const auto refused = [](const char* pattern, const char* message) {
    const std::string error = error_of([&] { SplitPattern(pattern, "here"); });
    EXPECT_THAT(error, testing::StartsWith("here: the pattern ")) << pattern;
    EXPECT_THAT(error, HasSubstr(message)) << pattern;
  };
  refused(R"(\bword)", R"('\b')");
  refused(R"(^a)", "'^'");
  refused(R"(a$)", "'$'");
  refused(".", "'.'");
  refused(R"((?<=a)b)", "'(?<='");
  refused(R"((?<name>b))", "'(?<n'");
  refused(R"([a&&b])", "'&&'");
  refused(R"([[:alpha:]])", "'[:'");
  refused(R"([^\S])", R"('\S')");
  refused(R"(\w+)", R"('\w')");
  refused(R"(\p{Han})", R"('\p{Han}')");
  refused(R"(\x41)", R"('\x')");
  refused(R"(a{2,3}+)", "'+'");
  refused(R"(a{,3})", "'{,3}'");
  refused(R"((?i:ss))", "'ss'");
  refused(R"((?i:\p{Lu}))", "");
  refused(R"((?i:é))", "");
  refused(R"((?m:a))", "'(?m:'");
  refused("(*UTF)a", "'(*UT'");
  refused("(a", "an open group");
  refused("a)", "')'");
  refused("[a", "an open class");
  refused("a|*", "not a regular expression");
  refused(R"(\s*)", "can match nothing");
  refused("a||b", "can match nothing");
  refused(std::string(5000, 'a').c_str(), "5000 bytes");
}

TEST(HuggingFace, APatternThatNeverEndsIsStopped) {
  SplitPattern subject("(?:a+)+b|a", "here");
  const std::string error =
      error_of([&] { subject.find(std::string(60'000, 'a') + std::string(60'000, 'c'), true); });
  EXPECT_THAT(error, HasSubstr("here: the pattern fails on this text: "));
}

/// The smaller reference file with one part changed.
std::string error_with(const std::string& from, const std::string& to,
                       const std::string& name = "gpt2") {
  std::string json = read_text(golden / (name + ".json"));
  const std::size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  json.replace(at, from.size(), to);
  std::string error = error_of([&] { hugging_face_tokenizer(json, "here"); });
  EXPECT_THAT(error, testing::StartsWith("here"));
  return error;
}

TEST(HuggingFace, UnsupportedPartsAreRefused) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& message,
                         const std::string& name = "gpt2") {
    EXPECT_THAT(error_with(from, to, name), HasSubstr(message)) << to;
  };
  expect(R"("version":"1.0")", R"("version":"2.0")", "'version' = \"2.0\"");
  expect(R"("truncation":null)", R"("truncation":{"max_length":5})", "'truncation' = ");
  expect(R"("padding":null)", R"("padding":{})", "'padding' = {}");
  expect(R"("padding":null)", R"("paddings":null)", "'paddings' is not supported");
  expect(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})", "normalizer");
  expect(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})", "NFC");
  expect(R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false)",
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true)", "'add_prefix_space'");
  expect(R"("pre_tokenizer":{"type":"ByteLevel")", R"("pre_tokenizer":{"type":"Whitespace")",
         "Whitespace");
  expect(R"("decoder":{"type":"ByteLevel")", R"("decoder":{"type":"WordPiece")", "WordPiece");
  expect(R"("post_processor":null)", R"("post_processor":{"type":"Odd"})", "Odd");
  expect(R"("type":"BPE")", R"("type":"Unigram")", "Unigram");
  expect(R"("dropout":null)", R"("dropout":0.1)", "'dropout' = 0.1");
  expect(R"("byte_fallback":false)", R"("byte_fallback":true)", "'byte_fallback'");
  expect(R"("continuing_subword_prefix":null)", R"("continuing_subword_prefix":"##")", "##");
  expect(R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")", "</w>");
  expect(R"("lstrip":false)", R"("lstrip":true)", "'lstrip' = true");
  expect(R"("rstrip":false)", R"("rstrip":true)", "'rstrip' = true");
  expect(R"("single_word":false)", R"("single_word":true)", "'single_word' = true");
  expect(R"("content":"<tool>")", R"("content":"<|endoftext|>")", "");
  expect(R"("content":"<tool>")", R"("content":"")", "has 0 bytes");
  expect(R"("id":2000)", R"("id":2001)", "each once");
  expect(R"("id":2000)", R"("id":99999999)", "each once");
  expect(R"("id":2000)", R"("id":-1)", "id -1");
  expect(R"("id":0,)", R"("id":5,)", "in the vocabulary");
  expect(R"("vocab":{)", R"("vocab":{"!":1,)", "has the key \"!\" twice");
  expect(R"("vocab":{)", R"("vocab":{"":1,)", "an empty token");
  expect(R"("!":1,)", "", "");  // no token for the byte, and an id too few
  expect(R"("merges":[")", R"("merges":["q zz",")", "'zz' is not in the vocabulary");
  expect(R"("merges":[")", R"("merges":["a b c",")", "is not two tokens");
  expect(R"("merges":[)", R"("merges":[["a","b","c"],)", "is not two tokens");
  expect(R"("merges":[)", R"("merges":[7,)", "merge 7 is not two tokens");
  expect(R"("behavior":"Isolated")", R"("behavior":"Removed")", "Removed", "llama3");
  expect(R"("invert":false)", R"("invert":true)", "'invert' = true", "llama3");
  expect(R"({"Regex":)", R"({"String":)", "'String' is not supported", "llama3");
  expect(R"("use_regex":false)", R"("use_regex":true)", "'use_regex' = true", "llama3");
  expect(R"({1,3})", R"({1,3}\\b)", R"('\b')", "llama3");
  expect(R"({"version")", R"({"version":[)" + std::string(100, '[') + R"(],"x")", "");
  EXPECT_THAT(error_of([] { hugging_face_tokenizer("{", "here"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { hugging_face_tokenizer("[]", "here"); }),
              HasSubstr("is not an object"));
  EXPECT_THAT(error_of([] { hugging_face_tokenizer(std::string(1'000'000, '['), "here"); }),
              HasSubstr("nested more than"));
}

TEST(HuggingFace, DamagedFilesAreRefusedOrStillRoundTrip) {
  const std::string whole = read_text(golden / "llama3.json");
  const std::string text =
      "It's 12345 \xF0\x9F\x9A\xA3 oars\r\n\n  and\xFF<|eot_id|> \xE2\x80\x83 banks";
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string json = whole;
    // Half of them outside vocabulary and merges, by far the smaller part.
    const std::size_t at = i % 2 == 0 ? random() % 2400 : random() % json.size();
    if (i % 10 == 9) {
      json.resize(at);
    } else {
      json[at] = static_cast<char>(json[at] ^ 1 << random() % 8);
    }
    try {
      const auto subject = hugging_face_tokenizer(json, "here").tokenizer;
      EXPECT_EQ(subject->decode(subject->encode(text)), text) << "flip at " << at;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(HuggingFace, FilesOfOlderVersionsAreAccepted) {
  // GPT-2's file has no model type, and empty strings for no prefix.
  std::string json = read_text(golden / "gpt2.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(json.find(from), std::string::npos) << from;
    json.replace(json.find(from), from.size(), to);
  };
  replace(R"("model":{"type":"BPE",)", R"("model":{)");
  replace(R"("continuing_subword_prefix":null)", R"("continuing_subword_prefix":"")");
  replace(R"(,"byte_fallback":false,"ignore_merges":false)", "");
  const LoadedModel loaded = hugging_face_tokenizer(json, "here");
  EXPECT_EQ(loaded.end_of_document, 0);
  EXPECT_EQ(loaded.tokenizer->encode("In the beginning"),
            tokenizer("gpt2")->encode("In the beginning"));
}

TEST(HuggingFace, TextBecomesADataset) {
  const Scratch scratch;
  write_text(scratch / "in", "In the beginning\nGod created\n");
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.documents = "line";
  options.valid_fraction = 0;
  options.tokenizer = "huggingface:" + (golden / "llama3.json").string();
  options.output = scratch / "set";
  prepare(options, {});
  const Dataset dataset = Dataset::open(scratch / "set");
  const auto subject = load_tokenizer(dataset);
  EXPECT_EQ(dataset.manifest().vocabulary, 1509);
  EXPECT_EQ(dataset.manifest().end_of_document, 1506);  // <|end_of_text|>
  EXPECT_EQ(read_text(scratch / "set/tokenizer.json"), read_text(golden / "llama3.json"));
  const std::vector<std::int32_t> ids = all_tokens(dataset, SplitName::train);
  EXPECT_EQ(subject->decode(ids), "In the beginning<|end_of_text|>God created<|end_of_text|>");
  EXPECT_EQ(
      dataset.reader(SplitName::train)->document_ends(0, static_cast<std::int64_t>(ids.size())),
      (std::vector<std::int64_t>{
          static_cast<std::int64_t>(subject->encode("In the beginning").size() + 1),
          static_cast<std::int64_t>(ids.size())}));
  const auto end = [&](const std::string& wanted) {
    options.end_of_document = wanted;
    options.output = scratch / ("set-" + wanted);
    return prepare(options, {}).manifest.end_of_document;
  };
  EXPECT_EQ(end("<|eot_id|>"), 1508);
  EXPECT_EQ(end("7"), 7);
  EXPECT_EQ(end("none"), std::nullopt);
  EXPECT_THAT(error_of([&] { end("<eos>"); }), HasSubstr("--end-of-document <eos>: is no added"));
  EXPECT_THAT(error_of([&] { end("1509"); }), HasSubstr("outside the vocabulary of 1509"));
  std::string changed = read_text(scratch / "set/tokenizer.json");
  changed[100] ^= 1;
  write_text(scratch / "set/tokenizer.json", changed);
  EXPECT_THAT(error_of([&] { load_tokenizer(dataset); }),
              HasSubstr("set/tokenizer.json: its hash is"));
}

}  // namespace
}  // namespace trireme::data
