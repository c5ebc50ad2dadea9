#include "trireme/data/dataset.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/hash.hpp"
#include "trireme/data/tokenizer.hpp"

#include "data/dataset_files.hpp"
#include "support.hpp"
#include "support/peak_memory.hpp"

/// libhdf5 1.10 leaks memory on damaged metadata. Read by LeakSanitizer.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): its own name for it
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace trireme::data::test {
namespace {

using testing::HasSubstr;

Dataset lines_dataset(const Scratch& scratch, const std::string& name, std::size_t size,
                      std::int64_t shard_tokens = 1LL << 27) {
  PrepareOptions options;
  options.documents = "line";
  options.valid_fraction = 0;
  options.shard_tokens = shard_tokens;
  return make_dataset(scratch, name, prose(size, 1), options);
}

TEST(Reader, AnyRangeOfSeveralShardsAndChunks) {
  const Scratch scratch;
  // Shards of 150,001 tokens have three chunks each; the cache of four chunks is always too small.
  const Dataset dataset = lines_dataset(scratch, "set", 500'000, 150'001);
  ASSERT_GE(dataset.manifest().train.size(), 4U);
  const std::vector<std::int32_t> all = all_tokens(dataset, SplitName::train);
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == 256) ends.push_back(static_cast<std::int64_t>(i) + 1);
  }
  const auto reader = dataset.reader(SplitName::train, make_reader_cache(1));
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = random() % all.size();
    const std::size_t count = random() % std::min<std::size_t>(all.size() - begin, 70'000);
    std::vector<std::int32_t> found(count);
    reader->read(static_cast<std::int64_t>(begin), found);
    ASSERT_TRUE(std::equal(found.begin(), found.end(), all.begin() + static_cast<long>(begin)));
    const auto low = static_cast<std::int64_t>(begin);
    const auto high = static_cast<std::int64_t>(begin + count);
    const auto first = std::upper_bound(ends.begin(), ends.end(), low);
    const auto last = std::upper_bound(first, ends.end(), high);
    ASSERT_EQ(reader->document_ends(low, high), std::vector<std::int64_t>(first, last));
  }
  std::vector<std::int32_t> one(1);
  EXPECT_THROW(reader->read(reader->tokens(), one), std::logic_error);
}

TEST(Reader, ManyThreadsAtOnce) {
  const Scratch scratch;
  const Dataset dataset = lines_dataset(scratch, "set", 300'000, 100'000);
  const std::vector<std::int32_t> all = all_tokens(dataset, SplitName::train);
  const auto shared = dataset.reader(SplitName::train, make_reader_cache(1));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto own = dataset.reader(SplitName::train);
      std::mt19937 random(t);
      std::vector<std::int32_t> found(500);
      for (int i = 0; i < 100; ++i) {
        const std::size_t begin = random() % (all.size() - found.size());
        (i % 2 == 0 ? own : shared)->read(static_cast<std::int64_t>(begin), found);
        wrong +=
            std::equal(found.begin(), found.end(), all.begin() + static_cast<long>(begin)) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Reader, DocumentsOfManyChunks) {
  const Scratch scratch;
  PrepareOptions options;
  options.documents = "line";
  options.valid_fraction = 0;
  std::string text;
  for (int i = 0; i < 150'000; ++i) text += "x\n";  // more than two chunks of ends
  const Dataset dataset = make_dataset(scratch, "set", text, options);
  const auto reader = dataset.reader(SplitName::train);
  ASSERT_EQ(reader->tokens(), 300'000);
  for (const std::int64_t begin : {0, 1, 131'071, 131'072, 131'073, 262'143, 299'998}) {
    const std::int64_t end = std::min<std::int64_t>(begin + 5, 300'000);
    std::vector<std::int64_t> expected;
    for (std::int64_t e = begin + 1; e <= end; ++e) {
      if (e % 2 == 0) expected.push_back(e);
    }
    EXPECT_EQ(reader->document_ends(begin, end), expected) << begin;
  }
  dataset.verify();
}

TEST(Corruption, AChangedChunkIsNamedWithFileAndOffset) {
  const Scratch scratch;
  PrepareOptions options;
  options.name = "another";  // not the folder's name
  options.valid_fraction = 0;
  std::string text = prose(200'000, 3);
  const std::string mark = "find-these-bytes";
  text.replace(140'000, mark.size(), mark);  // in the third chunk, tokens 131072-196607
  make_dataset(scratch, "demo", text, options);
  const fs::path shard = scratch / "demo/train-00000.h5";
  std::string content = read_text(shard);
  std::string stored;
  for (const char c : mark) stored += {c, '\0'};
  const std::size_t at = content.find(stored);
  ASSERT_NE(at, std::string::npos);
  content[at] = static_cast<char>(content[at] ^ 4);
  write_text(shard, content);
  const std::size_t chunk = at - 2 * (140'000 - 131'072);

  const Dataset dataset = Dataset::open(scratch / "demo");
  const auto reader = dataset.reader(SplitName::train);
  std::vector<std::int32_t> good(131'072);
  reader->read(0, good);
  EXPECT_EQ(good, bytes_of(text.substr(0, good.size())));
  std::vector<std::int32_t> one(1);
  const std::string expected =
      shard.string() + ": checksum of the chunk at byte " + std::to_string(chunk) +
      " (tokens 131072-196607) does not match; restore the file or prepare again";
  EXPECT_EQ(error_of([&] { reader->read(131'072, one); }), expected);
  EXPECT_EQ(error_of([&] { dataset.verify(); }), expected);
}

/// Flips bits of the shard, or truncates it: every time an Error, or the very same data.
class Mutation : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    const Dataset dataset = lines_dataset(scratch_, "set", GetParam());
    tokens_ = all_tokens(dataset, SplitName::train);
    ends_ = dataset.reader(SplitName::train)
                ->document_ends(0, static_cast<std::int64_t>(tokens_.size()));
    content_ = read_text(shard());
  }
  void TearDown() override { EXPECT_EQ(open_identifiers(), 0); }
  fs::path shard() const { return scratch_ / "set/train-00000.h5"; }

  /// True if the mutated shard reads as before; false if it is refused.
  bool reads_the_same(const std::string& mutated) {
    write_text(shard(), mutated);
    EXPECT_THROW(Dataset::open(scratch_ / "set").verify(), Error);
    try {
      const Dataset dataset = Dataset::open(scratch_ / "set");
      const std::vector<std::int32_t> tokens = all_tokens(dataset, SplitName::train);
      const auto reader = dataset.reader(SplitName::train);
      const auto ends = reader->document_ends(0, reader->tokens());
      EXPECT_EQ(tokens == tokens_, true);
      EXPECT_EQ(ends == ends_, true);
      return true;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("train-00000.h5"));
      return false;
    }
  }

  Scratch scratch_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> ends_;
  std::string content_;
};

TEST_P(Mutation, OneBit) {
  std::mt19937 random(4);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    std::string mutated = content_;
    // Half of them at the start, where most of the library's metadata is.
    const std::size_t at = random() % (i % 2 == 0 ? 4096 : mutated.size());
    mutated[at] = static_cast<char>(mutated[at] ^ (1 << random() % 8));
    refused += reads_the_same(mutated) ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
}

TEST_P(Mutation, Truncation) {
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    const std::size_t length = i == 0 ? content_.size() - 1 : random() % content_.size();
    EXPECT_FALSE(reads_the_same(content_.substr(0, length))) << length;
  }
  EXPECT_FALSE(reads_the_same({}));
}

TEST_P(Mutation, RandomRanges) {
  std::mt19937 random(6);
  for (int i = 0; i < 50; ++i) {
    std::string mutated = content_;
    const std::size_t size = 1 + random() % 64;
    const std::size_t at = random() % (i % 2 == 0 ? 4096 : mutated.size() - size);
    mutated.replace(at, size, random_bytes(size, random()));
    reads_the_same(mutated);
  }
}

// One chunk, located in the dataset's header; and four, located by an index.
INSTANTIATE_TEST_SUITE_P(Shards, Mutation, testing::Values(3000, 200'000));

/// Replaces `from` by `to` in dataset.json and expects a refusal that contains `expected`.
void expect_refused(const Scratch& scratch, const std::string& from, const std::string& to,
                    const std::string& expected) {
  const fs::path file = scratch / "set/dataset.json";
  const std::string before = read_text(file);
  const std::size_t at = before.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  std::string after = before;
  write_text(file, after.replace(at, from.size(), to));
  EXPECT_THAT(error_of([&] {
                const Dataset dataset = Dataset::open(scratch / "set");
                load_tokenizer(dataset);
              }),
              HasSubstr(expected))
      << from << " -> " << to;
  write_text(file, before);
}

TEST(Manifest, OnlyTheWritersFormIsAccepted) {
  const Scratch scratch;
  lines_dataset(scratch, "set", 3000);
  unseal(scratch / "set");
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& expected) {
    expect_refused(scratch, from, to, expected);
  };
  refused("{", "", "dataset.json: is not valid JSON");
  refused("trireme-tokens", "other", "\"format\" is not \"trireme-tokens\"");
  refused("\"version\": 1", "\"version\": 3", "\"version\" is neither 1 nor 2");
  refused("\"version\": 1", "\"version\": 2", "lacks \"loss_weights\"");
  refused("\"version\": 1", "\"version\": 2, \"loss_weights\": false",
          "\"loss_weights\" is not true");
  refused("\"version\": 1", "\"version\": 1, \"loss_weights\": true",
          "a key that this program does not know");
  refused("\"version\": 1", "\"version\": 2, \"loss_weights\": true",
          "is not version 2 of trireme-tokens");
  refused("\"version\": 1", "\"version\": 1, \"version\": 1", "has the key \"version\" twice");
  refused("\"version\": 1", "\"version\": 1, \"extra\": 1",
          "a key that this program does not know");
  refused("\"vocabulary\": 257,", "", "lacks \"vocabulary\"");
  refused("\"vocabulary\": 257", "\"vocabulary\": 70000", "from 1 to 65536");
  refused("\"vocabulary\": 257", "\"vocabulary\": -1", "from 1 to 65536");
  refused("\"vocabulary\": 257", "\"vocabulary\": 257.0", "is not a whole number");
  refused("\"vocabulary\": 257", "\"vocabulary\": 18446744073709551615", "is not a whole number");
  refused("\"vocabulary\": 257", "\"vocabulary\": 300", "does not fit its tokenizer");
  refused("\"end_of_document\": 256", "\"end_of_document\": 257", "from 0 to 256");
  refused("\"end_of_document\": 256", "\"end_of_document\": 3", "does not fit its tokenizer");
  refused("\"uint16\"", "\"int16\"", "neither uint16 nor uint32");
  refused("\"uint16\"", "\"uint32\"", "/tokens: is of the wrong type");
  refused("\"name\": \"set\"", "\"name\": \"a\\nb\"", "printable");
  refused("\"bytes\"", "\"words\"", "\"tokenizer\" is none that this program knows");
  refused("train-00000.h5", "../train-00000.h5", "is not named train-00000.h5");
  refused("train-00000.h5", "/etc/passwd", "is not named train-00000.h5");
  refused("\"train\": [", "\"train\": [7, ", "entry 0 of \"train\" is not an object");
  refused("\"xxh3\": \"", "\"xxh3\": \"g", "is not 16 hex digits");
  refused("\"tokens\": ", "\"tokens\": 9", "exactly 9");
  refused("\"tokens\": ", "\"tokens\": 9000000000000000", "is not a whole number from 1 to");
  refused("\"documents\": ", "\"documents\": 1", "/document_ends: ");
  write_text(scratch / "set/dataset.json", std::string(100'000, '['));
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "set"); }), HasSubstr("nested more than 64"));
  write_text(scratch / "set/dataset.json", "{");
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "set"); }), HasSubstr("not valid JSON"));
}

TEST(Manifest, CharacterMapsAreChecked) {
  const Scratch scratch;
  PrepareOptions options;
  options.tokenizer = "characters";
  make_dataset(scratch, "set", "abcabcabcabc", options);
  unseal(scratch / "set");
  const std::string original = read_text(scratch / "set/dataset.json");
  for (const char* map : {"[97, 97, 98]", "[98, 97]", "[97, 98, 256]", "[-1]", "{}", "[97.5]"}) {
    std::string text = original;
    const std::size_t begin = text.find('[');
    text.replace(begin, text.find(']') + 1 - begin, map);
    write_text(scratch / "set/dataset.json", text);
    const Dataset dataset = Dataset::open(scratch / "set");
    EXPECT_THAT(error_of([&] { load_tokenizer(dataset); }),
                HasSubstr("is not an ascending list of bytes"));
  }
}

TEST(Manifest, MissingFoldersAndFiles) {
  const Scratch scratch;
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(error_of([&] { Dataset::open(scratch.path()); }), HasSubstr("holds no dataset.json"));
  lines_dataset(scratch, "set", 3000);
  fs::rename(scratch / "set/train-00000.h5", scratch / "elsewhere.h5");
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "set"); }),
              HasSubstr((scratch / "set/train-00000.h5").string() + ": cannot open: No such file"));
  fs::create_symlink(scratch / "elsewhere.h5", scratch / "set/train-00000.h5");
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "set"); }),
              HasSubstr("train-00000.h5: is a symbolic link, which"));
  fs::remove(scratch / "set/train-00000.h5");
  fs::create_directory(scratch / "set/train-00000.h5");
  EXPECT_THAT(error_of([&] { Dataset::open(scratch / "set"); }),
              HasSubstr("train-00000.h5: is not a regular file"));
}

TEST(Manifest, AChangedModelIsRefused) {
  const Scratch scratch;
  PrepareOptions options;
  options.tokenizer = "sentencepiece:350";
  const Dataset dataset = make_dataset(scratch, "set", prose(20'000, 7), options);
  dataset.verify();
  std::string model = read_text(scratch / "set/tokenizer.model");
  model[model.size() / 2] = static_cast<char>(model[model.size() / 2] ^ 1);
  write_text(scratch / "set/tokenizer.model", model);
  EXPECT_THAT(error_of([&] { load_tokenizer(dataset); }),
              HasSubstr("tokenizer.model: its hash is"));
  EXPECT_THROW(dataset.verify(), Error);
  fs::remove(scratch / "set/tokenizer.model");
  EXPECT_THAT(error_of([&] { load_tokenizer(dataset); }),
              HasSubstr("tokenizer.model: cannot open: No such file"));
}

TEST(Dataset, ALongManifestTakesLinearTimeAndBoundedMemory) {
  Manifest manifest;
  manifest.name = "many";
  manifest.tokenizer = "none";
  manifest.vocabulary = 9;
  for (std::size_t i = 0; i < 200'000; ++i) {
    manifest.train.push_back({shard_file(SplitName::train, i), 1, 1, std::string(16, 'a')});
  }
  const std::string text = to_text(manifest);
  const trireme::test::PeakMemory peak;
  const auto begin = std::chrono::steady_clock::now();
  const Manifest parsed = parse_manifest(text, "dataset.json");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(parsed.train.size(), manifest.train.size());
  EXPECT_LT(peak.bytes(), 10.0 * static_cast<double>(text.size()));
  fmt::print("{} bytes: {:.0f} more than before\n", text.size(), peak.bytes());
}

TEST(Hash, KnownValuesInPiecesOfAnySize) {
  // The hash of nothing, from the definition of XXH3 (64 bits, seed 0).
  EXPECT_EQ(Xxh3().hex(), "2d06800538d394c2");
  const Scratch scratch;
  const std::string text = random_bytes(5'000'000, 8);
  write_text(scratch / "file", text);
  Xxh3 pieces;
  for (std::size_t at = 0; at < text.size(); at += 12'345) {
    const std::string part = text.substr(at, 12'345);
    pieces.update(part.data(), part.size());
  }
  EXPECT_EQ(pieces.hex(), hash_file(scratch / "file"));
}

}  // namespace
}  // namespace trireme::data::test
