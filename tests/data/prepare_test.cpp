#include "trireme/data/prepare.hpp"

#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "trireme/core/files.hpp"

#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t end_of_document = 256;

/// Ids of `texts`, each followed by the end-of-document token.
std::vector<std::int32_t> joined(const std::vector<std::string>& texts) {
  std::vector<std::int32_t> ids;
  for (const std::string& text : texts) {
    for (const std::int32_t id : bytes_of(text)) ids.push_back(id);
    ids.push_back(end_of_document);
  }
  return ids;
}

std::vector<std::int64_t> all_ends(const Dataset& dataset, SplitName split) {
  const auto reader = dataset.reader(split);
  return reader->document_ends(0, reader->tokens());
}

/// A failed prepare must leave only the inputs.
void expect_only(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    found.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(names));
}

TEST(Prepare, OneFileIsSplitAtATokenLikeNanoGpt) {
  const Scratch scratch;
  // The size of the corpus with the well-known split: 1,003,854 tokens for training.
  const std::string text = random_bytes(1'115'394, 1);
  const Dataset dataset = make_dataset(scratch, "set", text);
  EXPECT_EQ(dataset.manifest().vocabulary, 256);
  EXPECT_EQ(dataset.manifest().element_bytes, 2U);
  EXPECT_EQ(dataset.manifest().name, "set");
  EXPECT_FALSE(dataset.manifest().end_of_document.has_value());
  EXPECT_EQ(all_tokens(dataset, SplitName::train), bytes_of(text.substr(0, 1'003'854)));
  EXPECT_EQ(all_tokens(dataset, SplitName::valid), bytes_of(text.substr(1'003'854)));
  EXPECT_THAT(all_ends(dataset, SplitName::train), ElementsAre());
  EXPECT_THAT(all_ends(dataset, SplitName::valid), ElementsAre(1'115'394 - 1'003'854));
  dataset.verify();
  expect_only(scratch / "set", {"dataset.json", "train-00000.h5", "valid-00000.h5"});
}

TEST(Prepare, FractionsThatAreWholeInDecimal) {
  const Scratch scratch;
  PrepareOptions options;
  options.valid_fraction = 0.9;  // (1 − 0.9)·10 is 0.99…98 in binary
  const Dataset dataset = make_dataset(scratch, "set", "0123456789", options);
  EXPECT_EQ(dataset.reader(SplitName::train)->tokens(), 1);
  EXPECT_EQ(dataset.reader(SplitName::valid)->tokens(), 9);
  options.valid_fraction = 0;
  const Dataset whole = make_dataset(scratch, "whole", "0123456789", options);
  EXPECT_EQ(whole.reader(SplitName::train)->tokens(), 10);
  EXPECT_TRUE(whole.manifest().valid.empty());
  EXPECT_EQ(whole.reader(SplitName::valid)->tokens(), 0);
}

TEST(Prepare, LinesAreDocumentsInSmallShards) {
  const Scratch scratch;
  PrepareOptions options;
  options.documents = "line";
  options.shard_tokens = 7;
  options.valid_fraction = 0.25;
  const Dataset dataset =
      make_dataset(scratch, "set", "first\n\nsecond line\nx\n\n\nlast, no newline", options);
  const std::vector<std::int32_t> all = joined({"first", "second line", "x", "last, no newline"});
  // 37 tokens; the boundary nearest to 27.75 is after "x" (20), because the next one is the end.
  const auto middle = all.begin() + 20;
  EXPECT_EQ(all_tokens(dataset, SplitName::train), std::vector<std::int32_t>(all.begin(), middle));
  EXPECT_EQ(all_tokens(dataset, SplitName::valid), std::vector<std::int32_t>(middle, all.end()));
  EXPECT_THAT(all_ends(dataset, SplitName::train), ElementsAre(6, 18, 20));
  EXPECT_THAT(all_ends(dataset, SplitName::valid), ElementsAre(17));
  EXPECT_EQ(dataset.manifest().train.size(), 3U);
  EXPECT_EQ(dataset.manifest().vocabulary, 257);
  EXPECT_EQ(dataset.manifest().end_of_document, 256);
  dataset.verify();
  const auto reader = dataset.reader(SplitName::train);
  EXPECT_THAT(reader->document_ends(6, 18), ElementsAre(18));
  EXPECT_THAT(reader->document_ends(5, 6), ElementsAre(6));
  EXPECT_THAT(reader->document_ends(6, 6), ElementsAre());
}

TEST(Prepare, SeveralFilesAndLinesOfJson) {
  const Scratch scratch;
  write_text(scratch / "a", "alpha");
  write_text(scratch / "b", "beta\n");
  PrepareOptions options;
  options.inputs = {scratch / "a", scratch / "b"};
  options.output = scratch / "deep/er/files";  // parents are created
  options.name = "two";
  options.valid_fraction = 0;
  prepare(options, {});
  const Dataset files = Dataset::open(scratch / "deep/er/files");
  EXPECT_EQ(all_tokens(files, SplitName::train), joined({"alpha", "beta\n"}));
  EXPECT_EQ(files.manifest().name, "two");

  write_text(scratch / "a",
             "{\"text\": \"one\\nline \\u00e9\", \"id\": 3}\n  \n{\"text\": \"\"}\n");
  write_text(scratch / "b", "{\"id\": {}, \"text\": \"two\"}");
  options.documents = "jsonl:text";
  options.output = scratch / "json";
  prepare(options, {});
  EXPECT_EQ(all_tokens(Dataset::open(scratch / "json"), SplitName::train),
            joined({"one\nline \xC3\xA9", "two"}));
}

TEST(Prepare, BadLinesOfJsonAreNamed) {
  const Scratch scratch;
  const auto message = [&](const std::string& line) {
    write_text(scratch / "in", "{\"text\": \"fine\"}\n" + line + "\n");
    PrepareOptions options;
    options.inputs = {scratch / "in"};
    options.output = scratch / "out";
    options.documents = "jsonl:text";
    std::string error = error_of([&] { prepare(options, {}); });
    expect_only(scratch.path(), {"in"});
    return error;
  };
  EXPECT_THAT(message("{\"text\": \"open"), HasSubstr("/in:2: is not valid JSON"));
  EXPECT_THAT(message("{\"text\": \"\xFF\"}"), HasSubstr("/in:2: is not valid JSON"));
  EXPECT_THAT(message("[1]"), HasSubstr("/in:2: is not a JSON object"));
  EXPECT_THAT(message("{\"txt\": \"\"}"), HasSubstr("/in:2: has no field \"text\""));
  EXPECT_THAT(message("{\"text\": 3}"), HasSubstr("/in:2: field \"text\" is not text"));
  EXPECT_THAT(message(std::string(70 << 20, ' ')), HasSubstr("/in:2: the line is longer than"));
}

TEST(Prepare, TheSameTextGivesTheSameBytes) {
  const Scratch scratch;
  PrepareOptions options;
  options.documents = "line";
  options.tokenizer = "sentencepiece:400";
  options.name = "same";
  const std::string text = prose(300'000, 2);
  make_dataset(scratch, "one", text, options);
  // In another second: HDF5 would store the time in the file.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  make_dataset(scratch, "two", text, options);
  for (const char* file : {"dataset.json", "train-00000.h5", "valid-00000.h5", "tokenizer.model"}) {
    EXPECT_TRUE(read_text(scratch / "one" / file) == read_text(scratch / "two" / file)) << file;
  }
}

TEST(Prepare, ProgressReachesTheEnd) {
  const Scratch scratch;
  write_text(scratch / "in", prose(3'000'000, 3));
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.tokenizer = "characters";
  options.output = scratch / "out/";
  std::int64_t last = 0;
  prepare(options, [&](std::int64_t done, std::int64_t all) {
    EXPECT_GE(done, last);
    EXPECT_EQ(all, 6'000'000);
    last = done;
  });
  EXPECT_EQ(last, 6'000'000);
  EXPECT_EQ(Dataset::open(scratch / "out").manifest().name, "out");
}

TEST(Prepare, WrongOptionsAreExplained) {
  const Scratch scratch;
  write_text(scratch / "in", "text");
  write_text(scratch / "empty", "");
  write_text(scratch / "blank", "\n\n\n");
  const auto message = [&](auto change) {
    PrepareOptions options;
    options.inputs = {scratch / "in"};
    options.output = scratch / "out";
    change(options);
    std::string error = error_of([&] { prepare(options, {}); });
    expect_only(scratch.path(), {"in", "empty", "blank"});
    return error;
  };
  EXPECT_THAT(message([](auto& o) { o.inputs = {}; }), HasSubstr("--input: names no file"));
  EXPECT_THAT(message([&](auto& o) { o.inputs = {scratch / "none"}; }),
              HasSubstr("none: cannot open: No such file"));
  EXPECT_THAT(message([&](auto& o) { o.inputs = {scratch.path()}; }),
              HasSubstr("is not a regular file"));
  EXPECT_THAT(message([&](auto& o) {
                o.inputs = {scratch / "in", scratch / "empty"};
              }),
              HasSubstr("empty: is empty"));
  EXPECT_THAT(message([&](auto& o) {
                o.inputs = {scratch / "blank"};
                o.documents = "line";
              }),
              HasSubstr("blank: 0 documents of 0 tokens"));
  EXPECT_THAT(message([](auto& o) { o.documents = "page"; }),
              HasSubstr("--documents page: must be file, line or jsonl:FIELD"));
  EXPECT_THAT(message([](auto& o) { o.tokenizer = "words"; }),
              HasSubstr("--tokenizer words: must be bytes, characters"));
  EXPECT_THAT(message([](auto& o) { o.tokenizer = "sentencepiece:0"; }),
              HasSubstr("must be from 1 to"));
  EXPECT_THAT(message([](auto& o) { o.tokenizer = "sentencepiece:99999999999999999999"; }),
              HasSubstr("must be from 1 to"));
  EXPECT_THAT(message([](auto& o) { o.valid_fraction = 1.5; }), HasSubstr("--valid-fraction 1.5"));
  EXPECT_THAT(message([](auto& o) { o.valid_fraction = std::nan(""); }),
              HasSubstr("--valid-fraction nan"));
  EXPECT_THAT(message([](auto& o) { o.shard_tokens = 0; }), HasSubstr("--shard-tokens 0"));
  EXPECT_THAT(message([](auto& o) { o.name = "two\nlines"; }), HasSubstr("printable"));
  EXPECT_THAT(message([&](auto& o) { o.output = scratch / "in/out"; }),
              HasSubstr("cannot create: Not a directory"));
  EXPECT_THAT(message([&](auto& o) { o.output = scratch / "in"; }),
              HasSubstr("exists and is not an empty folder"));
  EXPECT_THAT(message([&](auto& o) { o.output = scratch.path(); }),
              HasSubstr("exists and is not an empty folder"));
  EXPECT_THAT(message([&](auto& o) { o.output = "/proc/trireme"; }), HasSubstr("cannot create"));
  // An empty folder is accepted, but not if another run filled it meanwhile.
  fs::create_directory(scratch / "free");
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "free";
  prepare(options, {});
  EXPECT_THAT(error_of([&] { prepare(options, {}); }), HasSubstr("is not an empty folder"));
}

TEST(Prepare, FailedWritesLeaveNothing) {
  const Scratch scratch;
  const std::string text = prose(200'000, 4);
  write_text(scratch / "in", text);
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "new/out";
  options.valid_fraction = 0;
  // The spool of 400,000 bytes fails at the first limits; the shard, a few KB larger, at the
  // others: when the library writes data, or metadata on close.
  for (const rlim_t limit : {0, 1000, 300'000, 399'999, 400'000, 401'000, 402'000, 480'000}) {
    std::string message;
    {
      const trireme::test::FileSizeLimit guard(limit);
      message = error_of([&] { prepare(options, {}); });
    }
    EXPECT_THAT(message, HasSubstr("cannot write: File too large; raise the limit")) << limit;
    EXPECT_THAT(message, HasSubstr(limit == 0        ? "tokenizer.chosen"
                                   : limit < 400'000 ? ".tokens: "
                                                     : "train-00000.h5"))
        << limit;
    expect_only(scratch.path(), {"in"});
  }
  prepare(options, {});
  EXPECT_EQ(all_tokens(Dataset::open(options.output), SplitName::train), bytes_of(text));
}

// What a killed prepare left is removed by the next one, but not what another one works in, what is
// of another host, and what no prepare made.
TEST(Prepare, RemovesWhatKilledOnesLeft) {
  const Scratch scratch;
  write_text(scratch / "in", prose(2'000, 6));
  const std::string own = "out.tmp-" + std::to_string(::getpid());
  for (const char* name : {"out.tmp-7", "out.tmp-8", "out.tmp-9", "out.tmp-x", "out.tmp-12345678",
                           "other.tmp-7", own.c_str()}) {
    fs::create_directory(scratch / name);
    write_text(scratch / name / "tokens.spool", "left");
  }
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "out";
  std::string owner_text;
  prepare(options, [&](std::int64_t, std::int64_t) {
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      const fs::path file = entry.path() / ".trireme-prepare";
      if (fs::exists(file)) owner_text = read_text(file);
    }
  });
  ASSERT_FALSE(owner_text.empty());
  // Without an owner file nothing is removed.
  expect_only(scratch.path(), {"in", "out", "out.tmp-7", "out.tmp-8", "out.tmp-9", "out.tmp-x",
                               "out.tmp-12345678", "other.tmp-7", own});
  fs::remove_all(scratch / "out");
  for (const char* name : {"out.tmp-7", "out.tmp-8", "out.tmp-x", "out.tmp-12345678"}) {
    write_text(scratch / name / ".trireme-prepare", owner_text);
  }
  write_text(scratch / "out.tmp-9/.trireme-prepare", "another " + owner_text);
  const Descriptor owner(::open((scratch / "out.tmp-8").c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(owner.get(), LOCK_EX | LOCK_NB), 0);
  options.tokenizer = "sentencepiece:nosuch";  // an error keeps what a correct command takes over
  EXPECT_THAT(error_of([&] { prepare(options, {}); }), HasSubstr("nosuch"));
  EXPECT_TRUE(fs::exists(scratch / "out.tmp-7"));
  options.tokenizer = "";
  prepare(options, {});
  expect_only(scratch.path(), {"in", "out", "out.tmp-8", "out.tmp-9", "out.tmp-x",
                               "out.tmp-12345678", "other.tmp-7", own});
  expect_only(scratch / "out", {"dataset.json", "train-00000.h5", "valid-00000.h5"});
}

/// The files of a dataset, by name.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text(entry.path());
  }
  return files;
}

TEST(Prepare, TheFilesAreTheSameInAnyParts) {
  std::mt19937 random(23);
  for (int trial = 0; trial < 20; ++trial) {
    const Scratch scratch;
    PrepareOptions options;
    const bool json = trial % 4 == 1, whole = trial % 4 == 2;
    options.documents = json ? "jsonl:b" : whole ? "file" : "line";
    if (json && trial % 8 == 1) options.prompt = "a";
    options.tokenizer = trial % 3 == 0   ? "characters"
                        : trial % 3 == 1 ? "bytes"
                                         : "sentencepiece:300";
    options.valid_fraction = static_cast<double>(random() % 5) / 4;
    options.shard_tokens = 1 + random() % 3000;
    options.name = "same";
    for (int file = 0; file < 3; ++file) {
      std::string text;
      for (std::size_t lines = 20 + random() % 200; lines > 0; --lines) {
        const std::string words = prose(random() % 10 == 0 ? 0 : random() % 60, random());
        std::string line;
        for (const char c : words) line += c < ' ' || c > '~' ? ' ' : c;
        text +=
            json ? nlohmann::json{{"a", "q" + std::to_string(lines)}, {"b", line}}.dump() : line;
        if (lines > 1 || random() % 2 == 0) text += '\n';
      }
      options.inputs.push_back(scratch / ("in" + std::to_string(file)));
      write_text(options.inputs.back(), text + "x\"");
      if (json) write_text(options.inputs.back(), text);
    }
    options.output = scratch / "one";
    prepare(options, {});
    options.output = scratch / "parts";
    options.part_bytes = static_cast<std::int64_t>(50 + random() % 800);
    prepare(options, {});
    ASSERT_EQ(files_of(scratch / "one"), files_of(scratch / "parts")) << "trial " << trial;
  }
}

TEST(Prepare, NamesNeedNotBeUtf8) {
  const Scratch scratch;
  PrepareOptions options;
  options.inputs = {scratch / "a\xff.txt"};
  write_text(options.inputs.front(), prose(2'000, 8));
  options.output = scratch / "out";
  prepare(options, {});
  Dataset::open(options.output).verify();
}

TEST(Prepare, ALineInAnyPartIsNamedByItsNumber) {
  const Scratch scratch;
  std::string text;
  for (int line = 1; line < 500; ++line)
    text += R"({"text": "some words"})"
            "\n";
  write_text(scratch / "in", text + "{\"txt\": 1}\n" + text);
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "out";
  options.documents = "jsonl:text";
  for (const std::int64_t bytes : {60, 1000, 11'000, 1 << 20}) {
    options.part_bytes = bytes;
    EXPECT_THAT(error_of([&] { prepare(options, {}); }), HasSubstr("in:500: has no field"))
        << bytes;
    expect_only(scratch.path(), {"in"});
  }
}

// A process that was killed leaves whole parts, one that it was writing, and shards.
TEST(Prepare, ARestartKeepsWholeParts) {
  const Scratch scratch;
  write_text(scratch / "in", prose(20'000, 7));
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "out";
  options.documents = "line";
  options.tokenizer = "sentencepiece:300";
  options.part_bytes = 5000;
  fs::path left;
  const auto leave = [&](std::int64_t done, std::int64_t all) {  // when three parts are done
    if (done < 9 * all / 10 || !left.empty()) return;
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      if (entry.path().filename().string().starts_with("out.tmp-")) left = entry.path();
    }
    fs::copy(left, scratch / "kept", fs::copy_options::recursive);
  };
  prepare(options, leave);
  ASSERT_FALSE(left.empty());
  const auto expected = files_of(scratch / "out");
  const auto restart = [&](const auto& change) {
    fs::remove_all(scratch / "out");
    fs::copy(scratch / "kept", scratch / "out.tmp-7", fs::copy_options::recursive);
    change(scratch / "out.tmp-7");
    double first = -1;  // share that is done when the first text has been read
    prepare(options, [&](std::int64_t done, std::int64_t all) {
      if (first < 0) first = static_cast<double>(done) / static_cast<double>(all);
    });
    EXPECT_EQ(files_of(scratch / "out"), expected);
    expect_only(scratch.path(), {"in", "kept", "out"});
    return first;
  };
  EXPECT_GT(restart([](const fs::path&) {}), 0.7) << "neither trained nor encoded again";
  EXPECT_GT(restart([](const fs::path& folder) {
              write_text(folder / "part-000003.unfinished-99.tokens", "half");
              write_text(folder / "part-000003.json.tmp", "[1");
              write_text(folder / "train-00000.h5", "half");
            }),
            0.7);
  // What is cut short, or of other options, is made again.
  EXPECT_LT(restart([](const fs::path& folder) {
              for (const char* part : {"part-000000", "part-000001", "part-000002"}) {
                fs::resize_file(folder / (std::string(part) + ".tokens"), 8);
              }
            }),
            0.7);
  EXPECT_LT(restart([](const fs::path& folder) { write_text(folder / "plan.json", "{}"); }), 0.7);
}

TEST(Prepare, FullDiskLeavesNothing) {
  const Scratch scratch;
  fs::create_directory(scratch / "disk");
  const std::string text = prose(200'000, 5);
  write_text(scratch / "in", text);
  PrepareOptions options;
  options.inputs = {scratch / "in"};
  options.output = scratch / "disk/out";
  options.documents = "line";
  const std::string disk = (scratch / "disk").string();
  bool fitted = false;
  for (int kilobytes = 64; !fitted; kilobytes += 128) {
    const std::string size = "size=" + std::to_string(kilobytes) + "k";
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      GTEST_SKIP() << "no permission to mount a small disk";
    }
    try {
      prepare(options, {});
      fitted = true;
      Dataset::open(options.output).verify();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot write: No space left on device; free space"));
      expect_only(disk, {});
    }
    ::umount2(disk.c_str(), MNT_DETACH);
    ASSERT_LT(kilobytes, 4096);
  }
}

}  // namespace
}  // namespace trireme::data::test
