// libFuzzer's mutations of an HDF5 file, sealed again in most cases.
#include "hdf5_file.hpp"

// NOLINTBEGIN(readability-identifier-naming): libFuzzer's names
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  const std::size_t first = size > 8 && data[0] != 0x89 ? 1 : 0;  // a shard's choice of manifest
  if (size <= first + 48) return LLVMFuzzerMutate(data, size, most);
  // Usually mutates a range without resizing, so that addresses stay valid.
  if (seed % 4 != 0) {
    const std::size_t at = first + seed / 4 % (size - first);
    const std::size_t part = std::min<std::size_t>(1 + seed / 64 % 16, size - at);
    LLVMFuzzerMutate(data + at, part, part);
  } else {
    size = LLVMFuzzerMutate(data, size, most);
  }
  if (seed % 16 == 5 || size <= first) return size;
  std::vector<std::uint8_t> file(data + first, data + size);
  trireme::fuzz::seal(file);
  std::memcpy(data + first, file.data(), file.size());
  return size;
}
// NOLINTEND(readability-identifier-naming)
