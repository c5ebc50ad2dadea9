#include <map>

#include "piece_file.hpp"

namespace trireme::checkpoint {

using nlohmann::json;

namespace {

Box box_of(const json& begin, const json& extent) {
  return {make_index(begin), make_shape(extent)};
}

constexpr const char* folder_format = "part-{:03}";

}  // namespace

json describe(const std::vector<Piece>& pieces) {
  json list = json::array();
  for (const Piece& piece : pieces) {
    if (const std::string fault = fault_of_name(piece.name); !fault.empty()) {
      throw Error("tensor '{}': its name {}", piece.name, fault);
    }
    std::int64_t whole = 0;
    if (!checked_elements(piece.shape, piece.data.type(), whole)) {
      throw Error("tensor {}: {} is no shape", piece.name, piece.shape.to_string());
    }
    const std::int64_t elements = piece.data.elements();
    TRIREME_ASSERT(piece.data.data() != nullptr || elements == 0, "piece of {}", piece.name);
    const Box box{piece.begin, piece.data.shape()};
    const auto begin = list_of(piece.begin, piece.data.shape().dimensions());
    if (!fits(box, piece.shape)) {
      throw Error("tensor {}: a piece {} from {} on does not fit into {}", piece.name,
                  box.extent.to_string(), to_string(piece.begin, box.extent.dimensions()),
                  piece.shape.to_string());
    }
    list.push_back({piece.name, name_of(piece.data.type()), list_of(piece.shape), begin,
                    list_of(box.extent), piece.write && elements > 0});
  }
  return list;
}

std::vector<Reader::Entry> join(const std::vector<json>& ranks) {
  std::map<std::string, Reader::Entry> by_name;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const json& piece : ranks[rank]) {
      Reader::Entry entry{piece[0], make_shape(piece[2]),
                          dtype_from_name(piece[1].get<std::string>())};
      const auto [known, is_new] = by_name.emplace(entry.name, entry);
      if (!is_new && (known->second.shape != entry.shape || known->second.type != entry.type)) {
        throw Error("rank {}: tensor {}: is {} {} here and {} {} on another rank", rank, entry.name,
                    name_of(entry.type), entry.shape.to_string(), name_of(known->second.type),
                    known->second.shape.to_string());
      }
    }
  }
  std::vector<Reader::Entry> tensors;
  std::map<std::string, std::size_t> index;
  for (const auto& [name, entry] : by_name) {
    // In HDF5 one name cannot be a group and a dataset.
    for (std::size_t slash = name.find('/'); slash != name.npos;
         slash = name.find('/', slash + 1)) {
      if (by_name.count(name.substr(0, slash)) != 0) {
        throw Error("tensor {}: a part of its name is a tensor too", name);
      }
    }
    index.emplace(name, tensors.size());
    tensors.push_back(entry);
  }
  std::vector<PieceRecord> pieces;
  for (const json& rank : ranks) {
    for (const json& piece : rank) {
      if (piece[5]) pieces.push_back({index[piece[0]], box_of(piece[3], piece[4]), 0, "", {}});
    }
  }
  sort_and_check_cover("pieces of all ranks", tensors, pieces);
  return tensors;
}

std::vector<PlannedPiece> planned_of(const json& description) {
  std::vector<PlannedPiece> pieces;
  for (const json& piece : description) {
    if (!piece[5]) continue;
    pieces.push_back({piece[0], dtype_from_name(piece[1].get<std::string>()), make_shape(piece[2]),
                      box_of(piece[3], piece[4])});
  }
  return pieces;
}

FilePlan::FilePlan(const FileLayout& layout, int ranks)
    : shared_(!layout.nodes.empty()), per_folder_(layout.per_folder) {
  TRIREME_ASSERT(per_folder_ >= 1 && (!shared_ || static_cast<int>(layout.nodes.size()) == ranks),
                 "{} ranks have nodes, of {}", layout.nodes.size(), ranks);
  std::map<int, std::int64_t> number_of;  // by leader
  for (int rank = 0; rank < ranks; ++rank) {
    leaders_.push_back(shared_ ? layout.nodes[static_cast<std::size_t>(rank)] : rank);
    number_of.emplace(leaders_.back(), 0);
  }
  for (auto& [leader, number] : number_of) number = files_++;
  for (const int leader : leaders_) numbers_.push_back(number_of.at(leader));
}

FileRecord FilePlan::file_of(int rank) const {
  const std::int64_t number = numbers_[static_cast<std::size_t>(rank)];
  FileRecord file;
  file.name = fmt::format("{}-{:05}.h5", shared_ ? "node" : "rank", number);
  if (files_ > per_folder_) file.folder = fmt::format(folder_format, number / per_folder_);
  return file;
}

std::vector<std::string> FilePlan::folders() const {
  std::vector<std::string> names;
  for (std::int64_t first = 0; files_ > per_folder_ && first < files_; first += per_folder_) {
    names.push_back(fmt::format(folder_format, first / per_folder_));
  }
  return names;
}

}  // namespace trireme::checkpoint
