// A shard of a dataset with a sound manifest: everything is opened and read. The first byte selects
// the manifest (one chunk, or several with an index); the rest is the HDF5 file, extended with
// zeros to the end in its superblock, so that inputs stay small.
#include <cstring>
#include <vector>

#include "data/dataset_files.hpp"
#include "fuzz.hpp"
#include "hdf5_file.hpp"

// libhdf5 1.10.8 leaks parts of an object header that turns out to be damaged.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  using namespace trireme::data;
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  Manifest manifest;
  manifest.vocabulary = 257;
  manifest.element_bytes = 2;
  const ShardInfo shard = data[0] % 2 == 0 ? ShardInfo{"train-00000.h5", 303, 3, ""}
                                           : ShardInfo{"train-00000.h5", 150'000, 0, ""};
  const std::vector<std::uint8_t> bytes = fuzz::with_zeros(data + 1, size - 1);
  folder.put(shard.file, bytes.data(), bytes.size());
  fuzz::accepted((folder.path() / shard.file).string() + ": ", [&] {
    const ShardReader reader(folder.path(), manifest, shard);
    for (std::int64_t first = 0; first < shard.tokens; first += chunk_elements) {
      const std::vector<std::byte> chunk = reader.token_chunk(first / chunk_elements);
      fuzz::require(chunk.size() == 2 * static_cast<std::size_t>(
                                            std::min(chunk_elements, shard.tokens - first)),
                    "a chunk is whole");
      for (std::size_t i = 0; i < chunk.size(); i += 2) {
        const int id = std::to_integer<int>(chunk[i]) + 256 * std::to_integer<int>(chunk[i + 1]);
        fuzz::require(id < manifest.vocabulary, "a token is of the vocabulary");
      }
    }
    if (shard.documents == 0) return;
    std::uint64_t before = 0;
    for (const std::uint64_t end : reader.end_chunk(0)) {
      fuzz::require(end > before && end <= 303, "document ends ascend");
      before = end;
    }
  });
  return 0;
}
