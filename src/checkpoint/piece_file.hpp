// One rank's HDF5 file. The library makes and reads the structure (groups, datasets, attributes);
// the contiguous data themselves are written and read at the datasets' addresses by plain system
// calls: without the library's lock, and with the system's own reason when one fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "manifest.hpp"

namespace trireme::checkpoint {

/// Writes `pieces` to the new file `path` and fsyncs it. Returns one record per piece, in order,
/// without tensor and file index; `bytes` receives the file's size. Throws Error.
std::vector<PieceRecord> write_piece_file(const std::filesystem::path& path,
                                          const std::vector<const Piece*>& pieces,
                                          std::int64_t step, std::int64_t& bytes);

/// What the manifest expects of a dataset.
struct ExpectedDataset {
  std::string dataset;
  std::string tensor;  // for messages
  Box box;
  DType type = DType::f32;
};

/// Opens the file and returns each dataset's byte address. Refuses a file whose size is not
/// `bytes`, and any dataset that is reached through a link other than a hard one, or is not
/// contiguous, of the expected type and extents, inside this file and unfiltered. Throws Error.
std::vector<std::int64_t> locate_datasets(const std::filesystem::path& path, std::int64_t bytes,
                                          const std::vector<ExpectedDataset>& expected);

}  // namespace trireme::checkpoint
