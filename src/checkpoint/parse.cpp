// Reading a manifest that may be damaged or hostile.
#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "trireme/core/json.hpp"

#include "files.hpp"
#include "manifest.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t largest_manifest = std::int64_t{1} << 30;

std::int64_t integer_of(const json& number, const std::string& what) {
  if (!number.is_number_unsigned() ||
      number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    throw Error("{} is not an integer from 0 to 2^63 - 1", what);
  }
  return number.get<std::int64_t>();
}

/// A JSON object with the words to complain about it.
struct Object {
  const json& value;
  const std::string& where;  // "…/manifest.json: piece 3"

  const json& at(const char* key) const {
    const auto found = value.is_object() ? value.find(key) : value.end();
    if (!value.is_object() || found == value.end()) throw Error("{}: has no '{}'", where, key);
    return *found;
  }
  std::int64_t integer(const char* key) const {
    return integer_of(at(key), fmt::format("{}: '{}'", where, key));
  }
  std::string text(const char* key) const {
    const json& string = at(key);
    if (!string.is_string()) throw Error("{}: '{}' is not a string", where, key);
    return string.get<std::string>();
  }
  /// One number per dimension of a tensor.
  std::vector<std::int64_t> dimensions(const char* key, const char* what) const {
    std::vector<std::int64_t> numbers;
    for (const json& number : list(key)) {
      if (numbers.size() == Shape::max_dimensions) {
        throw Error("{}: '{}' has more than {} dimensions", where, key, Shape::max_dimensions);
      }
      numbers.push_back(integer_of(number, fmt::format("{}: {}", where, what)));
    }
    return numbers;
  }
  const json& list(const char* key) const {
    const json& array = at(key);
    if (!array.is_array()) throw Error("{}: '{}' is not a list", where, key);
    return array;
  }
};

bool plain(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

/// A sub-folder's name.
bool is_part(const std::string& name) {
  constexpr std::string_view prefix = "part-";
  return name.size() >= prefix.size() + 3 && name.size() <= prefix.size() + 9 &&
         name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

std::uint64_t parse_hash(const json& value, const std::string& where) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const bool hexadecimal = text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
                             return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                           });
  if (!hexadecimal) throw Error("{}: an xxh3 is not 16 hexadecimal digits", where);
  return std::stoull(text, nullptr, 16);
}

void parse_files(const json& root, const std::string& where, Manifest& manifest,
                 std::map<std::string, std::size_t>& index) {
  for (const json& each : Object{root, where}.list("files")) {
    const Object object{each, where};
    FileRecord file{object.text("name"), "", object.integer("bytes")};
    if (!plain(file.name)) throw Error("{}: a file name is not a plain name in the folder", where);
    if (each.contains("folder")) {
      file.folder = object.text("folder");
      if (!is_part(file.folder)) {
        throw Error("{}: the folder of file {} is not named part- and 3 to 9 digits", where,
                    file.name);
      }
    }
    if (!index.emplace(file.name, manifest.files.size()).second) {
      throw Error("{}: file {} is listed twice", where, file.name);
    }
    manifest.files.push_back(std::move(file));
  }
}

void parse_tensors(const json& root, const std::string& where, Manifest& manifest,
                   std::map<std::string, std::size_t>& index) {
  for (const json& each : Object{root, where}.list("tensors")) {
    const Object object{each, where};
    Reader::Entry tensor;
    tensor.name = object.text("name");
    if (const std::string fault = fault_of_name(tensor.name); !fault.empty()) {
      throw Error("{}: the name of tensor {} {}", where, manifest.tensors.size(), fault);
    }
    const std::string here = fmt::format("{}: tensor {}", where, tensor.name);
    try {
      tensor.type = dtype_from_name(object.text("type"));
    } catch (const Error& error) {
      throw Error("{}: {}", here, error.what());
    }
    tensor.shape = make_shape(Object{each, here}.dimensions("shape", "an extent"));
    std::int64_t elements = 0;
    if (!checked_elements(tensor.shape, tensor.type, elements)) {
      throw Error("{}: {} has more than 2^63 bytes", here, tensor.shape.to_string());
    }
    if (!manifest.tensors.empty() && !(manifest.tensors.back().name < tensor.name)) {
      throw Error("{}: is listed twice or out of order", here);
    }
    index.emplace(tensor.name, manifest.tensors.size());
    manifest.tensors.push_back(std::move(tensor));
  }
}

/// Numbers for names, in the order in which they first occur.
class Names {
 public:
  std::size_t number(std::string name) {
    return numbers_.emplace(std::move(name), numbers_.size()).first->second;
  }
  /// By number, the index of each name, or `none`.
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> indices(const std::map<std::string, std::size_t>& index) const {
    std::vector<std::size_t> result(numbers_.size(), none);
    for (const auto& [name, number] : numbers_) {
      const auto found = index.find(name);
      if (found != index.end()) result[number] = found->second;
    }
    return result;
  }

 private:
  std::map<std::string, std::size_t> numbers_;  // hashes of hostile names could all collide
};

/// Takes pieces as they are read, which may be before the tensors and files that they name: a
/// manifest has too many to be kept as JSON.
class Pieces {
 public:
  explicit Pieces(const std::string& where) : where_(where) {}

  void take(const json& each) {
    const std::string here = place(pieces_.size());
    const Object object{each, here};
    const auto offset = object.dimensions("offset", "an offset");
    const auto extents = object.dimensions("shape", "an extent");
    if (offset.size() != extents.size()) {
      throw Error("{}: 'offset' and 'shape' have different lengths", here);
    }
    PieceRecord piece{tensors_.number(object.text("tensor")),
                      {make_index(offset), make_shape(extents)},
                      files_.number(object.text("file")),
                      object.text("dataset"),
                      {}};
    std::string path = piece.dataset;  // a tensor's name, perhaps with '@' and an offset
    std::replace(path.begin(), path.end(), '@', '_');
    if (!fault_of_name(path).empty()) throw Error("{}: its dataset has no proper name", here);
    const json& blocks = object.list("xxh3");
    piece.blocks.reserve(blocks.size());
    for (const json& hash : blocks) piece.blocks.push_back(parse_hash(hash, here));
    pieces_.push_back(std::move(piece));
  }

  /// The pieces, checked, with the indices of `manifest`.
  std::vector<PieceRecord> finish(const Manifest& manifest,
                                  const std::map<std::string, std::size_t>& files,
                                  const std::map<std::string, std::size_t>& tensors) {
    const std::vector<std::size_t> tensor_of = tensors_.indices(tensors);
    const std::vector<std::size_t> file_of = files_.indices(files);
    std::vector<std::int64_t> left;
    for (const FileRecord& file : manifest.files) left.push_back(file.bytes);
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      PieceRecord& piece = pieces_[p];
      piece.tensor = tensor_of[piece.tensor];
      piece.file = file_of[piece.file];
      if (piece.tensor == Names::none) throw Error("{}: its tensor is not listed", place(p));
      if (piece.file == Names::none) throw Error("{}: its file is not listed", place(p));
      check(p, manifest, left[piece.file]);
    }
    check_datasets(manifest);
    return std::move(pieces_);
  }

 private:
  std::string place(std::size_t p) const { return fmt::format("{}: piece {}", where_, p); }

  /// Takes the piece's bytes from those that are `left` in its file.
  void check(std::size_t p, const Manifest& manifest, std::int64_t& left) const {
    const PieceRecord& piece = pieces_[p];
    const Reader::Entry& entry = manifest.tensors[piece.tensor];
    // Extents are bounded by the tensor's, so that what follows cannot overflow.
    if (!fits(piece.box, entry.shape)) {
      throw Error("{}: does not fit into tensor {} {}", place(p), entry.name,
                  entry.shape.to_string());
    }
    const std::int64_t bytes = bytes_of(piece.box.elements(), entry.type);
    if (bytes > left) {
      throw Error("{}: tensor {} claims more than file {} holds", place(p), entry.name,
                  manifest.files[piece.file].name);
    }
    left -= bytes;
    if (static_cast<std::int64_t>(piece.blocks.size()) != block_count(bytes)) {
      throw Error("{}: has {} checksums for {} bytes", place(p), piece.blocks.size(), bytes);
    }
  }

  /// No dataset may hold two pieces. By hash first: names have long common beginnings.
  void check_datasets(const Manifest& manifest) const {
    struct Key {
      std::size_t hash, piece;
    };
    std::vector<Key> order;
    order.reserve(pieces_.size());
    for (const PieceRecord& piece : pieces_) {
      order.push_back({std::hash<std::string>()(piece.dataset) + piece.file, order.size()});
    }
    const auto name = [&](const Key& key) {
      return std::tie(pieces_[key.piece].file, pieces_[key.piece].dataset);
    };
    std::sort(order.begin(), order.end(), [&](const Key& a, const Key& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      return std::tuple_cat(name(a), std::tie(a.piece)) <
             std::tuple_cat(name(b), std::tie(b.piece));
    });
    const auto twice = std::adjacent_find(
        order.begin(), order.end(),
        [&](const Key& a, const Key& b) { return a.hash == b.hash && name(a) == name(b); });
    if (twice == order.end()) return;
    const std::size_t second = (twice + 1)->piece;
    const PieceRecord& piece = pieces_[second];
    throw Error("{}: dataset {} of {} holds another piece already", place(second), piece.dataset,
                manifest.files[piece.file].name);
  }

  const std::string& where_;
  std::vector<PieceRecord> pieces_;  // `tensor` and `file` are numbers of the names until finish
  Names tensors_, files_;
};

}  // namespace

Manifest parse_manifest(const std::string& text, const std::string& where) {
  if (!is_sealed(text)) {
    throw Error("{}: does not match its own checksum; the file is damaged or was edited", where);
  }
  Pieces pieces(where);
  std::exception_ptr fault;  // of a piece, reported after the checks of format and version
  const json root =
      parse_json(text, where, "use another checkpoint", {"pieces", [&](const json& piece) {
                                                           if (fault) return;
                                                           try {
                                                             pieces.take(piece);
                                                           } catch (const Error&) {
                                                             fault = std::current_exception();
                                                           }
                                                         }});
  const Object object{root, where};
  if (object.text("format") != format_name) throw Error("{}: is not a {}", where, format_name);
  if (const std::int64_t version = object.integer("version"); version != format_version) {
    throw Error(
        "{}: is a {} of format {}, and this program reads format {}; use the one that "
        "wrote it",
        where, format_name, version, format_version);
  }
  if (fault) std::rethrow_exception(fault);
  if (object.integer("block_bytes") != block_bytes) {
    throw Error("{}: 'block_bytes' is not {}", where, block_bytes);
  }
  Manifest manifest;
  manifest.state.step = object.integer("step");
  manifest.state.samples = object.integer("samples");
  constexpr std::int64_t most = std::int64_t{1} << 60;  // training can count on from there
  for (const char* key : {"step", "samples"}) {
    if (object.integer(key) > most) throw Error("{}: '{}' is more than 2^60", where, key);
  }
  if (!object.at("seed").is_number_unsigned()) {
    throw Error("{}: 'seed' is not an integer from 0 to 2^64 - 1", where);
  }
  manifest.state.seed = object.at("seed").get<std::uint64_t>();
  std::map<std::string, std::size_t> files, tensors;
  parse_files(root, where, manifest, files);
  parse_tensors(root, where, manifest, tensors);
  object.list("pieces");
  manifest.pieces = pieces.finish(manifest, files, tensors);
  sort_and_check_cover(where, manifest.tensors, manifest.pieces);
  manifest.state.config = object.at("config");
  manifest.state.versions = object.at("versions");
  manifest.state.extra = object.at("extra");
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  return parse_manifest(read_small_file(path, largest_manifest), path.string());
}

}  // namespace trireme::checkpoint
