// What a save writes, and the HDF5 files that it goes into. The library makes and reads the
// structure (groups, datasets, attributes); the contiguous data themselves are written and read at
// the datasets' addresses by plain system calls: without the library's lock, by several ranks at
// once, and with the system's own reason when one fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "manifest.hpp"

namespace trireme::checkpoint {

/// A piece before it has data.
struct PlannedPiece {
  std::string name;  // of the tensor
  DType type = DType::f32;
  Shape shape;  // of the tensor
  Box box;
};

/// What this rank holds, for the others to check. Throws Error for what is wrong in itself.
nlohmann::json describe(const std::vector<Piece>& pieces);

/// All ranks' descriptions, joined: the tensors, by name. Throws Error unless ranks agree on each
/// tensor and the pieces to be written cover it exactly once.
std::vector<Reader::Entry> join(const std::vector<nlohmann::json>& ranks);

/// Those that the rank of that description writes, in its order.
std::vector<PlannedPiece> planned_of(const nlohmann::json& description);

/// Which rank writes into which file.
class FilePlan {
 public:
  FilePlan(const FileLayout& layout, int ranks);
  /// Whether a file has several ranks' pieces; then leader(rank) makes it.
  bool shared() const { return shared_; }
  int leader(int rank) const { return leaders_[static_cast<std::size_t>(rank)]; }
  /// Without its size.
  FileRecord file_of(int rank) const;
  /// Sub-folders to make.
  std::vector<std::string> folders() const;

 private:
  bool shared_;
  std::int64_t per_folder_;
  std::vector<int> leaders_;           // by rank
  std::vector<std::int64_t> numbers_;  // of files, by rank
  std::int64_t files_ = 0;
};

/// The place of a piece in its file.
struct Place {
  std::string dataset;
  std::int64_t address = 0;  // bytes
};

/// A file that was created, without data.
struct MadeFile {
  std::int64_t bytes = 0;
  std::vector<Place> places;
};

/// Makes the new file `path` with a dataset for each piece, in order. Throws Error.
MadeFile make_piece_file(const std::filesystem::path& path, const std::vector<PlannedPiece>& pieces,
                         std::int64_t step);

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
