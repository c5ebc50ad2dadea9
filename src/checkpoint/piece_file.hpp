// One HDF5 file of a checkpoint. The library makes and reads the structure (groups, datasets,
// attributes); the contiguous data themselves are written and read at the datasets' addresses by
// plain system calls: without the library's lock, by several ranks at once, and with the system's
// own reason when one fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "manifest.hpp"

namespace trireme::checkpoint {

/// A piece before it has data.
struct PlannedPiece {
  std::string name;  // of the tensor
  DType type = DType::f32;
  Shape shape;  // of the tensor
  Box box;
};

/// The place of a piece in its file.
struct Place {
  std::string dataset;
  std::int64_t address = 0;  // bytes
};

/// Makes the new file `path`, of `bytes`, with a dataset for each piece, in order; data are yet to
/// be written. Throws Error.
std::vector<Place> make_piece_file(const std::filesystem::path& path,
                                   const std::vector<PlannedPiece>& pieces, std::int64_t step,
                                   std::int64_t& bytes);

/// Writes the data of `pieces` to their places in the file and fsyncs it. Returns the xxh3 of each
/// piece's blocks. Several ranks may do so at once. Throws Error.
std::vector<std::vector<std::uint64_t>> write_pieces(const std::filesystem::path& path,
                                                     const std::vector<const Piece*>& pieces,
                                                     const std::vector<Place>& places);

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
