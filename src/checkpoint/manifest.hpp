// The manifest of a checkpoint: manifest.json, checked; and boxes of a logical tensor, the unit in
// which checkpoints store, check and read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/hash.hpp"

namespace trireme::checkpoint {

// Boxes.

/// Elements whose index is in [begin, begin + extent) in every dimension.
struct Box {
  Index begin{};
  Shape extent;
  std::int64_t elements() const { return extent.elements(); }
  std::int64_t end(int d) const { return begin[static_cast<std::size_t>(d)] + extent[d]; }
};

/// "[3, 48]", or "[]" for a scalar's only element.
std::string to_string(const Index& index, int dimensions);

/// The index of element `element` in row-major order of `box`, counted from the tensor's beginning.
Index index_of(const Box& box, std::int64_t element);

/// Whether `box` has as many dimensions as `whole` and is inside it.
bool fits(const Box& box, const Shape& whole);

/// The intersection; its extent is zero where there is none.
Box intersection(const Box& a, const Box& b);

/// An element that not exactly one box holds: the first such in row-major order.
struct CoverFault {
  Index at{};
  std::int64_t holders = 0;
};
/// Nothing when `boxes`, which all fit, hold each element of `whole` exactly once. In time
/// n·log n: the alternating sums over a box's 2^d corners, added over all boxes, determine how many
/// boxes hold each element, and so must leave those of `whole` alone.
std::optional<CoverFault> find_cover_fault(const Shape& whole, const std::vector<Box>& boxes);

/// Visits the stretches of `part` that are contiguous both in `stored`, which is row-major, and in
/// `data`, a view of `wanted`: visit(first element in `stored`, first element in the memory of
/// `data`, elements), in the order of `stored`. `part` is inside both boxes.
template <class Visit>
void for_each_stretch(const Box& part, const Box& stored, const Box& wanted, const Tensor& data,
                      const Visit& visit) {
  if (part.elements() == 0) return;
  const int dimensions = part.extent.dimensions();
  std::int64_t from = 0, to = 0;
  Index stride{};  // of `stored`
  std::int64_t product = 1;
  for (int d = dimensions - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    stride[i] = product;
    product *= stored.extent[d];
    from += (part.begin[i] - stored.begin[i]) * stride[i];
    to += (part.begin[i] - wanted.begin[i]) * data.stride(d);
  }
  std::int64_t elements = 1;
  int outer = dimensions;  // dimensions that do not join a stretch
  for (; outer > 0; --outer) {
    const int d = outer - 1;
    const bool joins =
        stride[static_cast<std::size_t>(d)] == elements && data.stride(d) == elements;
    if (part.extent[d] != 1 && !joins) break;
    elements *= part.extent[d];
  }
  Index at{};
  for (;;) {
    visit(from, to, elements);
    int d = outer - 1;
    for (; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      from += stride[i];
      to += data.stride(d);
      if (++at[i] < part.extent[d]) break;
      from -= stride[i] * at[i];
      to -= data.stride(d) * at[i];
      at[i] = 0;
    }
    if (d < 0) return;
  }
}

/// Throws Error where an element of `data` in host memory, which holds `box` of tensor `name`, is
/// NaN or infinite; `where` begins the message and `remedy` ends it.
void require_finite(const std::string& where, const std::string& name, const Box& box,
                    const Tensor& data, std::string_view remedy = "use another checkpoint");

// The manifest.

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
inline Shape make_shape(const std::vector<std::int64_t>& extents) { return Shape(extents); }
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
