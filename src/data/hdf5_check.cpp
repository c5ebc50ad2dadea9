#include "hdf5_check.hpp"

#include <bit>
#include <map>
#include <set>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

namespace trireme::data::hdf5 {

std::uint64_t checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) damaged("an extent passes 2^64");
  return product;
}

namespace {

/// Of one structure. The largest that is written is an index of chunks, 12 bytes for each 64 Ki
/// tokens.
constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;

/// Reads structures of a file, each inside of it, and no more than a sound file has in all.
class Structures {
 public:
  explicit Structures(const InputFile& file)
      : file_(file),
        size_(static_cast<std::uint64_t>(file.size())),
        budget_(8 * size_ + (std::uint64_t{1} << 20)) {}
  std::uint64_t size() const { return size_; }  // of the file, in bytes

  Bytes read(std::uint64_t at, std::uint64_t size) {
    if (at > size_ || size > size_ - at) damaged("a structure is outside of the file");
    if (size > most_bytes) damaged("a structure is larger than any that this program writes");
    // Structures of a sound file hardly ever overlap.
    if (size > budget_) damaged("its structures overlap");
    budget_ -= size;
    std::vector<std::uint8_t> bytes(size);
    if (file_.read_at(bytes.data(), size, static_cast<std::int64_t>(at)) < size) {
      damaged("the file became shorter");
    }
    return Bytes(std::move(bytes));
  }

  /// The block after the four bytes of its `signature`.
  Bytes block(std::uint64_t at, std::uint64_t size, const char* signature) {
    Bytes bytes = read(at, size);
    if (bytes.text(4) != signature) damaged(fmt::format("no {} at byte {}", signature, at));
    return bytes;
  }

 private:
  const InputFile& file_;
  std::uint64_t size_;
  std::uint64_t budget_;  // bytes that may still be read
};

struct Block {  // a direct block of a fractal heap
  std::uint64_t address = 0, size = 0;
};
// The shape of every heap of links: H5G's constants.
constexpr std::uint64_t heap_width = 4, heap_first_block = 512, heap_largest_block = 65536;
constexpr std::uint64_t heap_direct_rows = 9, heap_rows = 25;  // of 2^32 bytes
constexpr std::uint64_t node_bytes = 512, record_bytes = 11, node_overhead = 10;

std::uint64_t block_size(std::uint64_t row) {
  return row == 0 ? heap_first_block : heap_first_block << (row - 1);
}

/// The links of a group of many: a fractal heap, whose root is one block or a table of blocks, and
/// a B-tree of version 2 that names its objects in order.
class DenseLinks {
 public:
  explicit DenseLinks(Structures& structures) : structures_(structures) {}
  /// Appends them to `found`, which has the places of heap and tree.
  void run(Object& found) {
    head_ = found.heap;
    Bytes heap = structures_.block(found.heap, 146, "FRHP");
    const char* const other = "a heap of links is of another kind";
    const auto expect = [&](std::uint64_t value, std::size_t size) {
      heap.expect(value, size, other);
    };
    expect(0, 1);     // version
    expect(7, 2);     // bytes of an identifier
    expect(0, 2);     // filters
    expect(2, 1);     // checksums of direct blocks
    expect(4096, 4);  // largest object
    expect(0, 8);
    expect(nowhere, 8);                        // no huge objects
    heap.skip(48);                             // free space, which only writers look at; sizes
    for (int i = 0; i < 4; ++i) expect(0, 8);  // no huge and no tiny objects
    expect(heap_width, 2);
    expect(heap_first_block, 8);
    expect(heap_largest_block, 8);
    expect(32, 2);  // bits of an offset
    expect(1, 2);
    const std::uint64_t root = heap.number(8), count = heap.number(2);
    if (count == 0) {
      direct_block(root, 0, heap_first_block);
    } else {
      rows(root, 0, count, 0);
    }
    Bytes tree = structures_.block(found.names, 38, "BTHD");
    const char* const other_tree = "an index of links is of another kind";
    tree.expect(0, 1, other_tree);
    tree.expect(5, 1, other_tree);
    tree.expect(node_bytes, 4, other_tree);
    tree.expect(record_bytes, 2, other_tree);
    const std::uint64_t depth = tree.number(2);
    tree.skip(2);
    const std::uint64_t top = tree.number(8), records = tree.number(2), all = tree.number(8);
    if (depth > 8) damaged(other_tree);
    const std::size_t before = found.links.size();
    if (top != nowhere) names(top, records, depth, found);
    if (found.links.size() - before > all) damaged("an index holds more links than it says");
  }

 private:
  void direct_block(std::uint64_t at, std::uint64_t offset, std::uint64_t size) {
    if (at > structures_.size() || size > structures_.size() - at) {
      damaged("a heap of links is outside of the file");
    }
    Bytes begin = structures_.block(at, 17, "FHDB");
    begin.expect(0, 1, "a heap of links is of another version");
    begin.expect(head_, 8, "a block belongs to another heap");
    begin.expect(offset, 4, "a block is elsewhere in its heap");
    blocks_[offset] = {at, size};
  }

  void rows(std::uint64_t at, std::uint64_t offset, std::uint64_t count, int depth) {
    if (count > heap_rows || depth > 8) damaged("a heap of links has too many rows");
    Bytes bytes = structures_.block(at, 17 + 8 * heap_width * count + 4, "FHIB");
    bytes.expect(0, 1, "a heap of links is of another version");
    bytes.expect(head_, 8, "a block belongs to another heap");
    bytes.expect(offset & 0xFFFFFFFFU, 4, "a block is elsewhere in its heap");
    for (std::uint64_t row = 0; row < count; ++row) {
      for (std::uint64_t i = 0; i < heap_width; ++i, offset += block_size(row)) {
        const std::uint64_t child = bytes.number(8);
        if (child == nowhere) continue;
        if (row < heap_direct_rows) {
          direct_block(child, offset, block_size(row));
        } else {  // as many rows as its size takes
          rows(child, offset, static_cast<std::uint64_t>(std::bit_width(block_size(row))) - 11,
               depth + 1);
        }
      }
    }
  }

  void names(std::uint64_t at, std::uint64_t records, std::uint64_t depth, Object& found) {
    // Records of a full node, and of all below it, by depth: bytes of the counts follow from them.
    std::uint64_t most = (node_bytes - node_overhead) / record_bytes, all = most, pointer = 9;
    std::uint64_t sum_bytes = 0;
    for (std::uint64_t d = 1; d <= depth; ++d) {
      sum_bytes = d == 1 ? 0 : (static_cast<std::uint64_t>(std::bit_width(all)) + 7) / 8;
      pointer = 9 + sum_bytes;
      most = (node_bytes - node_overhead - pointer) / (record_bytes + pointer);
      all = (most + 1) * all + most;
    }
    if (records > most) damaged("an index of links is too full");
    Bytes node = structures_.block(at, node_bytes, depth == 0 ? "BTLF" : "BTIN");
    node.expect(0, 1, "an index of links is of another version");
    node.expect(5, 1, "an index of links is of another kind");
    for (std::uint64_t i = 0; i < records; ++i) name_record(node, found);
    for (std::uint64_t i = 0; depth > 0 && i <= records; ++i) {
      const std::uint64_t child = node.number(8), own = node.number(1);
      node.skip(sum_bytes);
      names(child, own, depth - 1, found);
    }
  }

  void name_record(Bytes& node, Object& found) {
    constexpr std::uint64_t block_head = 21;
    node.skip(4);  // hash of the name
    node.expect(0, 1, "a link is elsewhere than in its heap");
    const std::uint64_t offset = node.number(4), length = node.number(2);
    auto next = blocks_.upper_bound(offset);
    if (next == blocks_.begin()) damaged("a link is outside of its heap");
    const auto& [begin, place] = *std::prev(next);
    const std::uint64_t inside = offset - begin;
    if (inside < block_head || inside > place.size || length > place.size - inside) {
      damaged("a link is outside of its heap");
    }
    Bytes body = structures_.read(place.address + inside, length);
    take_link(body, found);
  }

  Structures& structures_;
  std::uint64_t head_ = nowhere;           // of the heap
  std::map<std::uint64_t, Block> blocks_;  // by offset in the heap
};

class Walk {
 public:
  explicit Walk(const InputFile& file) : structures_(file) {}

  void run() {
    const std::uint64_t root = superblock();
    std::vector<std::pair<std::string, std::uint64_t>> open{{"", root}};
    std::set<std::uint64_t> seen{root};
    while (!open.empty()) {
      const auto [path, address] = open.back();
      open.pop_back();
      path_ = path;
      for (const auto& [name, target] : object(address).links) {
        if (seen.insert(target).second) open.emplace_back(fmt::format("{}/{}", path, name), target);
      }
    }
  }
  /// Of the object at hand; "" for the root group.
  const std::string& path() const { return path_; }

 private:
  std::uint64_t superblock() {
    if (structures_.size() < 48) damaged("it is no HDF5 file");
    Bytes bytes = structures_.read(0, 48);
    if (bytes.text(8) != "\x89HDF\r\n\x1a\n") damaged("it is no HDF5 file");
    bytes.expect(3, 1, "its format is not that of HDF5 1.10");
    bytes.expect(8, 1, "its addresses are not of 8 bytes");
    bytes.expect(8, 1, "its sizes are not of 8 bytes");
    bytes.expect(0, 1, "it was not closed");
    bytes.expect(0, 8, "it has a user block");
    bytes.expect(nowhere, 8, "its superblock has an extension");
    if (const std::uint64_t end = bytes.number(8); end != structures_.size()) {
      damaged(fmt::format("it has {} bytes, its superblock says {}", structures_.size(), end));
    }
    return bytes.number(8);
  }

  Object object(std::uint64_t at) {
    Bytes head = structures_.block(at, 6, "OHDR");
    head.expect(2, 1, "an object header is of another version");
    const std::uint64_t flags = head.number(1);
    const std::size_t width = std::size_t{1} << (flags & 3U);
    const std::uint64_t more = ((flags & 0x20U) != 0 ? 16 : 0) + ((flags & 0x10U) != 0 ? 4 : 0);
    const std::uint64_t first = structures_.read(at + 6 + more, width).number(width);
    const bool ordered = (flags & 4U) != 0;
    Object found;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> further;
    messages(structures_.read(at + 6 + more + width, first), ordered, found, further);
    // The budget ends chains that bite their own tail.
    for (std::size_t i = 0; i < further.size(); ++i) {
      const auto [place, size] = further[i];
      if (size < 8) damaged("a continuation is too short");
      Bytes bytes = structures_.block(place, size, "OCHK");
      messages(bytes.part(size - 8), ordered, found, further);
    }
    if (found.chunk_index != nowhere) fixed_array(found);
    if (found.heap != nowhere) DenseLinks(structures_).run(found);
    return found;
  }

  void messages(Bytes bytes, bool ordered, Object& found,
                std::vector<std::pair<std::uint64_t, std::uint64_t>>& further) {
    const std::size_t head = ordered ? 6 : 4;
    while (bytes.left() >= head) {
      const std::uint64_t type = bytes.number(1), size = bytes.number(2), flags = bytes.number(1);
      if (ordered) bytes.skip(2);
      Bytes body = bytes.part(size);
      if (type != 0 && (flags & 2U) != 0) damaged("a message is shared");
      if (type == 0x10) {
        const std::uint64_t place = body.number(8);
        further.emplace_back(place, body.number(8));
      } else {
        take_message(type, body, structures_.size(), found);
      }
    }
  }

  void fixed_array(const Object& found) {
    Bytes head = structures_.block(found.chunk_index, 28, "FAHD");
    head.expect(0, 1, "an index of chunks is of another version");
    head.expect(found.filtered ? 1 : 0, 1, "an index of chunks is of another kind");
    const std::uint64_t entry = head.number(1), page_bits = head.number(1);
    const std::uint64_t entries = head.number(8), data = head.number(8);
    if (found.extents.size() != found.chunk.size()) damaged("chunks have another rank");
    std::uint64_t chunks = 1;
    for (std::size_t d = 0; d < found.chunk.size(); ++d) {
      const std::uint64_t extent = found.extents[d];
      const std::uint64_t chunk = found.chunk[d];
      if (chunk == 0) damaged("a chunk is empty");
      chunks = checked_product(chunks, extent / chunk + (extent % chunk == 0 ? 0 : 1));
    }
    if (entries != chunks || entry < 8 || entry > 20 || (found.filtered && entry < 13) ||
        (!found.filtered && entry != 8) || page_bits == 0 || page_bits > 20) {
      damaged("an index of chunks does not fit its dataset");
    }
    if (data == nowhere) return;
    const std::uint64_t page = std::uint64_t{1} << page_bits;
    const std::uint64_t pages = entries > page ? (entries + page - 1) >> page_bits : 0;
    // Checksums of each page, or one in all.
    if (entries > structures_.size()) damaged("an index of chunks is outside of the file");
    const std::uint64_t bytes = checked_product(entries, entry) + 18 + (pages + 7) / 8 + 4 * pages;
    if (data > structures_.size() || bytes > structures_.size() - data)
      damaged("an index of chunks is outside of the file");
    Bytes begin = structures_.block(data, 14, "FADB");
    begin.expect(0, 1, "an index of chunks is of another version");
    begin.expect(found.filtered ? 1 : 0, 1, "an index of chunks is of another kind");
    begin.expect(found.chunk_index, 8, "an index of chunks belongs to another");
  }

  Structures structures_;
  std::string path_;
};

}  // namespace

void check_structure(const InputFile& file) {
  Walk walk(file);
  try {
    walk.run();
  } catch (const Fault& fault) {
    const std::string path = config::one_line(config::shortened(walk.path(), 200));
    if (fault.known) {
      throw Error("{}: {}{}{}", file.path().string(), path, path.empty() ? "" : ": ", fault.text);
    }
    throw Error("{}: cannot open as HDF5: {}{}{}; restore the file or make it again",
                file.path().string(), path, path.empty() ? "" : ": ", fault.text);
  }
}

}  // namespace trireme::data::hdf5
