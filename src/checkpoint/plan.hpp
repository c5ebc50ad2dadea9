// What a save writes, and into which files.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/checkpoint.hpp"

#include "manifest.hpp"
#include "piece_file.hpp"

namespace trireme::checkpoint {

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

}  // namespace trireme::checkpoint
