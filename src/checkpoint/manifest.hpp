// The manifest of a checkpoint: manifest.json, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/hash.hpp"

#include "boxes.hpp"

namespace trireme::checkpoint {

constexpr std::string_view format_name = "trireme checkpoint";
constexpr int format_version = 2;  // 1 held stretches of row-major elements
constexpr std::int64_t block_bytes = std::int64_t{16} << 20;  // what one xxh3 covers

struct FileRecord {
  std::string name;    // plain
  std::string folder;  // "part-000" in the step folder, or "" for that itself
  std::int64_t bytes = 0;
  std::filesystem::path below(const std::filesystem::path& step_folder) const {
    return folder.empty() ? step_folder / name : step_folder / folder / name;
  }
};

/// A stored box of a tensor: one dataset of one file.
struct PieceRecord {
  std::size_t tensor = 0;  // index into Manifest::tensors
  Box box;
  std::size_t file = 0;  // index into Manifest::files
  std::string dataset;
  std::vector<std::uint64_t> blocks;  // xxh3 of each block_bytes, the last one shorter
};

struct Manifest {
  State state;
  std::vector<FileRecord> files;
  std::vector<Reader::Entry> tensors;  // by name
  std::vector<PieceRecord> pieces;     // by tensor, then box.begin
};

/// Bytes of `elements` of `type`, which a checked manifest keeps below 2⁶³.
inline std::int64_t bytes_of(std::int64_t elements, DType type) {
  return elements * static_cast<std::int64_t>(size_of(type));
}
inline std::int64_t block_count(std::int64_t bytes) {
  return bytes / block_bytes + (bytes % block_bytes == 0 ? 0 : 1);
}

/// Data move in steps of this size, so that a checksum finds in the cache what was just read, and a
/// write what was just summed.
constexpr std::int64_t step_bytes = std::int64_t{1} << 20;

/// Why `name` cannot name a tensor, or "".
std::string fault_of_name(std::string_view name);

/// Elements of `shape`; false when an extent is negative or the bytes of `type` pass 2⁶³.
bool checked_elements(const Shape& shape, DType type, std::int64_t& elements);

// JSON's lists of up to Shape::max_dimensions numbers, and back.
Shape make_shape(const std::vector<std::int64_t>& extents);
Index make_index(const std::vector<std::int64_t>& list);
std::vector<std::int64_t> list_of(const Shape& shape);
std::vector<std::int64_t> list_of(const Index& index, int dimensions);

/// Sorts the pieces and throws Error, beginning with `where`, unless they cover each tensor exactly
/// once.
void sort_and_check_cover(const std::string& where, const std::vector<Reader::Entry>& tensors,
                          std::vector<PieceRecord>& pieces);

/// The file's text: JSON whose first line holds the xxh3 of all that follows it.
std::string to_text(const Manifest& manifest);

/// Whether the first line of a manifest holds the xxh3 of the rest.
bool is_sealed(std::string_view text);

/// Throws Error that begins with `where` unless everything in the text of a manifest is consistent.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// The same for folder/manifest.json.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace trireme::checkpoint
