// A checkpoint's HDF5 file with a sound manifest: the datasets are found inside the file, or it is
// refused. The file is extended with zeros to the end in its superblock.
#include <vector>

#include "checkpoint/piece_file.hpp"
#include "fuzz.hpp"
#include "hdf5_file.hpp"

// libhdf5 1.10.8 leaks parts of an object header that turns out to be damaged.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  using namespace trireme::checkpoint;
  static const fuzz::Folder folder;
  static const std::vector<ExpectedDataset> expected = [] {
    std::vector<ExpectedDataset> list{{"a/v", "a/v", {{}, {9}}, DType::i64},
                                      {"a/w@0,2", "a/w", {{0, 2}, {4, 4}}, DType::f32},
                                      {"n", "n", {{}, {5}}, DType::bf16},
                                      {"h", "h", {{}, {3}}, DType::f16}};
    // More entries than a group keeps in its header.
    for (int i = 0; i < 12; ++i) {
      list.push_back(
          {fmt::format("many/t{}", i), fmt::format("many/t{}", i), {{}, {2}}, DType::f32});
    }
    return list;
  }();
  const std::vector<std::uint8_t> bytes = fuzz::with_zeros(data, size);
  folder.put("rank-00000.h5", bytes.data(), bytes.size());
  const std::filesystem::path path = folder.path() / "rank-00000.h5";
  const auto file_bytes = static_cast<std::int64_t>(bytes.size());
  fuzz::accepted(path.string() + ": ", [&] {
    const std::vector<std::int64_t> addresses = locate_datasets(path, file_bytes, expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::int64_t own = bytes_of(expected[i].box.elements(), expected[i].type);
      fuzz::require(addresses[i] >= 0 && addresses[i] <= file_bytes - own, "it is in the file");
    }
  });
  return 0;
}
