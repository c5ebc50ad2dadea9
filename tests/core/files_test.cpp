#include "trireme/core/files.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

#include "support/files.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::FileSizeLimit;
using test::read_text;
using test::Scratch;
using test::write_text;
using testing::HasSubstr;

/// The message of the Error that `call` throws.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// `size` bytes without a short period.
std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * i * 2654435761U >> 13);
  return text;
}

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

/// Whether SIGXFSZ is pending in this thread or its process.
bool signal_is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGXFSZ) == 1;
}

bool signal_is_held_back() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, SIGXFSZ) == 1;
}

TEST(FileError, NamesPathReasonAndRemedy) {
  EXPECT_EQ(error_of([] { throw_file_error("a/b", "write", ENOSPC); }),
            "a/b: cannot write: No space left on device; free space on that disk or choose another "
            "folder");
  EXPECT_EQ(error_of([] { throw_file_error("a", "open", EIO); }),
            "a: cannot open: Input/output error; check the path and the disk");
  EXPECT_THAT(std::string(mend_of(EFBIG)), HasSubstr("ulimit -f"));
  EXPECT_THAT(std::string(mend_of(EMFILE)), HasSubstr("ulimit -n"));
  EXPECT_THAT(std::string(mend_of(EROFS)), HasSubstr("ask for access"));
}

TEST(ParentOf, IsAFolderThatCanBeOpened) {
  EXPECT_EQ(parent_of("a/b/c"), "a/b");
  EXPECT_EQ(parent_of("name"), ".");
  EXPECT_EQ(parent_of("/name"), "/");
}

TEST(Descriptor, ClosesWhatItOwnsOnce) {
  int first = -1;
  int second = -1;
  {
    Descriptor a(::open("/dev/null", O_RDONLY));
    Descriptor b(::open("/dev/null", O_RDONLY));
    first = a.get();
    second = b.get();
    a = std::move(b);
    EXPECT_FALSE(is_open(first));
    EXPECT_EQ(a.get(), second);
    const Descriptor c(std::move(a));
    EXPECT_EQ(c.get(), second);
    EXPECT_TRUE(is_open(second));
  }
  EXPECT_FALSE(is_open(second));
  Descriptor none;
  EXPECT_EQ(none.close(), 0);
  Descriptor wrong(first);  // closed already: close(2) fails
  EXPECT_EQ(wrong.close(), -1);
  EXPECT_EQ(wrong.close(), 0);
}

TEST(SizeLimitGuard, NestsAndLeavesNoPendingSignal) {
  const Scratch scratch;
  const Descriptor file(::open((scratch / "file").c_str(), O_WRONLY | O_CREAT, 0600));
  {
    const FileSizeLimit limit(0);
    const SizeLimitGuard outer;
    {
      const SizeLimitGuard inner;
      EXPECT_EQ(::write(file.get(), "x", 1), -1);
      EXPECT_EQ(errno, EFBIG);
    }
    EXPECT_TRUE(signal_is_held_back()) << "the outer guard is still active";
    EXPECT_TRUE(signal_is_pending());
    EXPECT_EQ(::write(file.get(), "x", 1), -1);
  }
  EXPECT_FALSE(signal_is_held_back());
  EXPECT_FALSE(signal_is_pending());
}

TEST(InputFile, ReadsInPartsToTheEnd) {
  const Scratch scratch;
  const std::string text = pattern(100'003);
  write_text(scratch / "file", text);
  InputFile file(scratch / "file");
  EXPECT_EQ(file.size(), 100'003);
  std::string found;
  std::vector<char> part(9973);
  while (const std::size_t got = file.read(part.data(), part.size())) {
    EXPECT_EQ(got, std::min(part.size(), text.size() - found.size()));
    found.append(part.data(), got);
  }
  EXPECT_TRUE(found == text);
  EXPECT_EQ(file.read(part.data(), 1), 0U);
}

TEST(InputFile, AcceptsOnlyRegularFiles) {
  const Scratch scratch;
  EXPECT_THAT(error_of([&] { InputFile{scratch / "none"}; }),
              HasSubstr("none: cannot open: No such file or directory; check the name"));
  EXPECT_THAT(error_of([&] { InputFile{scratch.path()}; }), HasSubstr("is not a regular file"));
  // No process writes to it: an open that waits for a writer would hang.
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { InputFile{scratch / "pipe"}; }), HasSubstr("is not a regular file"));
  write_text(scratch / "file", "text");
  fs::create_symlink("file", scratch / "link");
  fs::create_symlink("loop", scratch / "loop");
  EXPECT_EQ(InputFile(scratch / "link").size(), 4);
  EXPECT_THAT(error_of([&] { InputFile(scratch / "link", Links::refuse); }),
              HasSubstr("link: is a symbolic link"));
  EXPECT_THAT(error_of([&] { InputFile{scratch / "loop"}; }), HasSubstr("loop: cannot open: "));
  EXPECT_EQ(InputFile(scratch / "file", Links::refuse).size(), 4);
}

TEST(ReadSmallFile, AcceptsFilesUpToTheLimitAndNoLinks) {
  const Scratch scratch;
  write_text(scratch / "file", "12345");
  write_text(scratch / "empty", "");
  fs::create_symlink("file", scratch / "link");
  EXPECT_EQ(read_small_file(scratch / "file", 5), "12345");
  EXPECT_EQ(read_small_file(scratch / "empty", 0), "");
  EXPECT_THAT(error_of([&] { read_small_file(scratch / "file", 4); }),
              HasSubstr("file: 5 bytes, expected at most 4"));
  EXPECT_THAT(error_of([&] { read_small_file(scratch / "link", 5); }), HasSubstr("symbolic link"));
}

TEST(OutputFile, WritesPiecesOfAnySize) {
  const Scratch scratch;
  const std::string text = pattern((std::size_t{5} << 20) + 17);  // several buffers and a part
  OutputFile file(scratch / "file");
  std::size_t at = 0;
  for (std::size_t part = 1; at < text.size(); part = part * 3 + 1) {
    const std::size_t bytes = std::min(part, text.size() - at);
    file.write(text.data() + at, bytes);
    at += bytes;
  }
  file.finish();
  EXPECT_TRUE(read_text(scratch / "file") == text);
  EXPECT_THAT(error_of([&] { OutputFile{scratch / "file"}; }),
              HasSubstr("file: cannot create: File exists"));
  EXPECT_EQ(fs::file_size(scratch / "file"), text.size());
}

TEST(OutputFile, ALimitOnFileSizesIsAnError) {
  const Scratch scratch;
  const std::string text = pattern(3'000'000);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1'500'000}, rlim_t{2'999'999}}) {
    const FileSizeLimit lowered(limit);
    EXPECT_THAT(error_of([&] {
                  OutputFile file(scratch / std::to_string(limit));
                  file.write(text.data(), text.size());
                  file.finish();
                }),
                HasSubstr("cannot write: File too large; raise the limit"))
        << limit;
  }
  EXPECT_FALSE(signal_is_held_back());
}

TEST(ReplaceFile, IsTheOldFileOrTheNewOne) {
  const Scratch scratch;
  replace_file(scratch / "file", "first, and longer");
  EXPECT_EQ(read_text(scratch / "file"), "first, and longer");
  replace_file(scratch / "file", "second");
  EXPECT_EQ(read_text(scratch / "file"), "second");
  {
    const FileSizeLimit limit(3);
    EXPECT_THAT(error_of([&] { replace_file(scratch / "file", "third"); }),
                HasSubstr("file.tmp: cannot write: File too large; raise the limit"));
  }
  EXPECT_EQ(read_text(scratch / "file"), "second");
  fs::create_directory(scratch / "folder");
  EXPECT_THAT(error_of([&] { replace_file(scratch / "folder", "text"); }),
              HasSubstr("folder: cannot replace: Is a directory"));
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"file", "folder"}));
  EXPECT_THAT(error_of([&] { replace_file(scratch / "none/file", "text"); }),
              HasSubstr("file.tmp: cannot create: No such file or directory"));
}

TEST(ReplaceFile, LeavesOtherFilesOfTheSameNameAlone) {
  const Scratch scratch;
  write_text(scratch / "file.tmp", "the user's");
  write_text(scratch / "file.1.tmp", "this too");
  replace_file(scratch / "file", "text");
  EXPECT_EQ(read_text(scratch / "file"), "text");
  EXPECT_EQ(read_text(scratch / "file.tmp"), "the user's");
  EXPECT_EQ(read_text(scratch / "file.1.tmp"), "this too");
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"file", "file.1.tmp", "file.tmp"}));
}

TEST(WriteOutput, WritesThroughFilesThatAreNotRegular) {
  const Scratch scratch;
  write_output(scratch / "file", "first");
  EXPECT_EQ(read_text(scratch / "file"), "first");
  fs::create_symlink("file", scratch / "link");
  write_output(scratch / "link", "second");
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  EXPECT_EQ(read_text(scratch / "file"), "second");
  fs::create_symlink("made", scratch / "nowhere");
  write_output(scratch / "nowhere", "third");
  EXPECT_TRUE(fs::is_symlink(scratch / "nowhere"));
  EXPECT_EQ(read_text(scratch / "made"), "third");
  // Both ends of the pipe are open here, so that no open waits for the other.
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const Descriptor pipe(::open((scratch / "pipe").c_str(), O_RDWR));
  write_output(scratch / "pipe", "fourth");
  EXPECT_TRUE(fs::is_fifo(scratch / "pipe"));
  char text[6] = {};
  ASSERT_EQ(::read(pipe.get(), text, sizeof text), 6);
  EXPECT_EQ(std::string(text, 6), "fourth");
  fs::create_symlink("/dev/full", scratch / "full");
  EXPECT_THAT(error_of([&] { write_output(scratch / "full", "x"); }),
              HasSubstr("full: cannot write: No space left on device"));
  EXPECT_TRUE(fs::is_symlink(scratch / "full"));
  EXPECT_THAT(error_of([&] { write_output(scratch.path(), "x"); }), HasSubstr("Is a directory"));
  EXPECT_EQ(names_in(scratch.path()).size(), 6U);
}

TEST(WriteFile, WritesTheWholeContent) {
  const Scratch scratch;
  const std::string text = pattern(200'000);
  write_file(scratch / "file", text + "more");
  write_file(scratch / "file", text);
  EXPECT_TRUE(read_text(scratch / "file") == text);
  write_file(scratch / "file", "");
  EXPECT_EQ(fs::file_size(scratch / "file"), 0U);
}

TEST(WriteFile, AFullDiskIsAnError) {
  const Scratch scratch;
  const fs::path disk = scratch / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "no permission to mount a small disk";
  }
  const std::string text = pattern(100'000);
  EXPECT_THAT(error_of([&] { write_file(disk / "whole", text); }),
              HasSubstr("whole: cannot write: No space left on device; free space"));
  fs::remove(disk / "whole");
  EXPECT_THAT(error_of([&] {
                OutputFile file(disk / "buffered");
                file.write(text.data(), text.size());
                file.finish();
              }),
              HasSubstr("buffered: cannot write: No space left on device; free space"));
  fs::remove(disk / "buffered");
  EXPECT_THAT(error_of([&] { replace_file(disk / "replaced", text); }), HasSubstr("No space"));
  EXPECT_TRUE(names_in(disk).empty());
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST(SyncPath, TakesFilesAndFolders) {
  const Scratch scratch;
  write_text(scratch / "file", "text");
  sync_path(scratch / "file");
  sync_path(scratch.path());
  EXPECT_THAT(error_of([&] { sync_path(scratch / "none"); }), HasSubstr("none: cannot open: "));
  EXPECT_THAT(error_of([&] { sync_path("/dev/null"); }), HasSubstr("/dev/null: cannot write: "));
}

}  // namespace
}  // namespace trireme
