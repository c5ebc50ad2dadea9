// Text compressed by gzip and Zstandard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "../../src/data/text_file.hpp"
#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::vector<char> packed(deflateBound(&stream, text.size()) + 64);
  std::string copy = text;
  stream.next_in = reinterpret_cast<Bytef*>(copy.data());
  stream.avail_in = static_cast<uInt>(copy.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  const auto size = static_cast<std::size_t>(stream.total_out);
  deflateEnd(&stream);
  return {packed.data(), size};
}

std::string zstandard(const std::string& text) {
  std::vector<char> packed(ZSTD_compressBound(text.size()));
  const std::size_t size = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3);
  return {packed.data(), size};
}

class CompressedTest : public testing::TestWithParam<const char*> {
 protected:
  std::string pack(const std::string& text) const {
    return std::string(GetParam()) == "gz" ? gzip(text) : zstandard(text);
  }
  /// The tokens of a dataset made of one file.
  std::vector<std::int32_t> tokens_of(const std::string& file, const std::string& contents,
                                      const std::string& documents = "line") {
    write_text(scratch_ / file, contents);
    const fs::path output = scratch_ / (std::to_string(number_++) + "-set");
    prepare({.inputs = {scratch_ / file}, .output = output, .documents = documents}, {});
    const Dataset dataset = Dataset::open(output);
    std::vector<std::int32_t> tokens = all_tokens(dataset, SplitName::train);
    const std::vector<std::int32_t> valid = all_tokens(dataset, SplitName::valid);
    tokens.insert(tokens.end(), valid.begin(), valid.end());
    return tokens;
  }
  Scratch scratch_;
  int number_ = 0;
};

TEST_P(CompressedTest, GivesTheDatasetOfItsText) {
  // Larger than the pieces that are read, compressible and not.
  for (const std::string& text : {prose(3'000'000, 1), random_bytes(2'500'000, 2),
                                  std::string(5'000'000, 'a'), std::string("one line")}) {
    const auto expected = tokens_of("plain.txt", text);
    EXPECT_EQ(tokens_of(std::string("t.txt.") + GetParam(), pack(text)), expected);
  }
  const std::string json = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  EXPECT_EQ(tokens_of(std::string("t.jsonl.") + GetParam(), pack(json), "jsonl:text"),
            tokens_of("plain.jsonl", json, "jsonl:text"));
}

TEST_P(CompressedTest, SeveralMembersAreOneText) {
  const std::string first = prose(200'000, 3), second = prose(300'000, 4);
  EXPECT_EQ(tokens_of(std::string("t.") + GetParam(), pack(first) + pack("") + pack(second)),
            tokens_of("plain.txt", first + second));
}

TEST_P(CompressedTest, ADamagedFileIsNamedAndLeavesNothing) {
  const std::string file = std::string("t.") + GetParam();
  const std::string whole = pack(prose(400'000, 5));
  for (const std::size_t cut :
       {whole.size() - 1, whole.size() / 2, std::size_t{7}, std::size_t{1}}) {
    EXPECT_THAT(error_of([&] { tokens_of(file, whole.substr(0, cut)); }),
                AllOf(HasSubstr(file), HasSubstr("is cut short")))
        << cut;
  }
  std::string broken = whole;
  broken[whole.size() / 2] = static_cast<char>(~broken[whole.size() / 2]);
  EXPECT_THAT(error_of([&] { tokens_of(file, broken); }),
              AllOf(HasSubstr(file), AnyOf(HasSubstr("is damaged"), HasSubstr("is cut short"))));
  EXPECT_THAT(error_of([&] { tokens_of(file, "no such thing"); }), HasSubstr("is damaged"));
  EXPECT_THAT(error_of([&] { tokens_of(file, whole + "x"); }),
              AnyOf(HasSubstr("is damaged"), HasSubstr("is cut short")));
  for (const auto& entry : fs::directory_iterator(scratch_.path())) {
    EXPECT_FALSE(entry.is_directory()) << entry.path();
  }
}

// A frame of one raw block whose header asks for a window of 256 MiB, as `zstd --long=28` writes.
TEST(CompressedText, ALongWindowOfZstandardIsRead) {
  const Scratch scratch;
  std::string frame = {'\x28', '\xB5', '\x2F', '\xFD', '\0', static_cast<char>((28 - 10) << 3)};
  const std::string text = prose(100'000, 6);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::min<std::size_t>(text.size() - at, 1 << 16);
    const std::size_t header = size << 3 | static_cast<std::size_t>(at + size == text.size());
    for (const int shift : {0, 8, 16}) frame += static_cast<char>(header >> shift & 255);
    frame += text.substr(at, size);
    at += size;
  }
  write_text(scratch / "t.zst", frame);
  const auto file = open_text(scratch / "t.zst");
  std::string found(text.size() + 1, ' ');
  found.resize(file->read(found.data(), found.size()));
  EXPECT_EQ(found, text);
}

INSTANTIATE_TEST_SUITE_P(Formats, CompressedTest, testing::Values("gz", "zst"));

}  // namespace
}  // namespace trireme::data::test
