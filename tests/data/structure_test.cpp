// HDF5 files that are malformed inside, under correct checksums: libhdf5 must not see them.
#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fuzz/hdf5_file.hpp"
#include "support.hpp"

namespace trireme::data::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using File = std::vector<std::uint8_t>;

std::size_t place_of(const File& file, std::string_view what, std::size_t from = 0) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const std::size_t at = text.find(what, from);
  EXPECT_NE(at, text.npos) << what;
  return at;
}

void put(File& file, std::size_t at, std::uint64_t value, std::size_t bytes) {
  std::memcpy(file.data() + at, &value, bytes);
}

class Structure : public testing::Test {
 protected:
  Structure() {
    PrepareOptions options;
    options.valid_fraction = 0;
    make_dataset(scratch_, "set", prose(150'000, 1), options);
    const std::string text = read_text(shard());
    sound_.assign(text.begin(), text.end());
  }
  fs::path shard() const { return scratch_ / "set/train-00000.h5"; }
  /// The error of opening after `edit`, sealed again.
  std::string refusal(const std::function<void(File&)>& edit) {
    File file = sound_;
    edit(file);
    fuzz::seal(file);
    write_text(shard(), std::string(file.begin(), file.end()));
    return error_of([&] { Dataset::open(scratch_ / "set"); });
  }

  Scratch scratch_;
  File sound_;
};

TEST_F(Structure, SealingASoundFileChangesNothing) {
  File again = sound_;
  fuzz::seal(again);
  EXPECT_EQ(again, sound_);
  EXPECT_NO_THROW(Dataset::open(scratch_ / "set"));
}

TEST_F(Structure, MalformedFilesAreRefusedBeforeTheLibrarySeesThem) {
  const auto refused = [&](const std::string& message, const std::function<void(File&)>& edit) {
    EXPECT_THAT(refusal(edit),
                AllOf(HasSubstr(shard().string() + ": cannot open as HDF5: "), HasSubstr(message)));
  };
  const std::size_t index = place_of(sound_, "FAHD"), entries = place_of(sound_, "FADB");
  const std::size_t root = 48, tokens = place_of(sound_, "OHDR", root + 4);
  refused("an index of chunks does not fit", [&](File& file) { put(file, index + 8, 2, 8); });
  refused("an index of chunks does not fit",
          [&](File& file) { put(file, index + 8, 1U << 30, 8); });
  refused("an index of chunks does not fit", [&](File& file) { put(file, index + 6, 255, 1); });
  refused("is outside of the file",
          [&](File& file) { put(file, index + 16, file.size() - 20, 8); });
  refused("belongs to another", [&](File& file) { put(file, entries + 6, 48, 8); });
  refused("no FADB at byte", [&](File& file) { put(file, index + 16, 48, 8); });
  refused("its format is not that of HDF5 1.10", [&](File& file) { put(file, 8, 2, 1); });
  refused("its superblock says", [&](File& file) { put(file, 28, file.size() + 1, 8); });
  refused("is outside of the file", [&](File& file) { put(file, 36, ~std::uint64_t{0} - 2, 8); });
  refused("no OHDR at byte", [&](File& file) { put(file, 36, 4000, 8); });
  refused("a dataspace is none that can be", [&](File& file) { put(file, tokens + 13, 33, 1); });
  refused("an object header is of another version", [&](File& file) { put(file, root + 4, 1, 1); });
  refused("ends before its content", [&](File& file) { put(file, tokens + 9, 0xFFFF, 2); });
  refused("message 99", [&](File& file) { put(file, tokens + 8, 99, 1); });
}

TEST_F(Structure, AHeaderThatContinuesInItselfIsRefused) {
  const std::size_t more = place_of(sound_, "OCHK");
  // The root's continuation message: position, size.
  const std::size_t message = place_of(sound_, std::string("\x10\x10\x00\x00", 4));
  EXPECT_THAT(refusal([&](File& file) {
                const std::size_t inside = more + 4;
                put(file, inside, 0x10, 1);
                put(file, inside + 1, 18, 2);
                put(file, inside + 3, 0, 1);
                std::memcpy(file.data() + inside + 4, file.data() + message + 4, 16);
              }),
              HasSubstr("its structures overlap"));
}

}  // namespace
}  // namespace trireme::data::test
