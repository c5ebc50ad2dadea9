// Groups of many links: a fractal heap, whose root is one block or a table of blocks, and a B-tree
// of version 2 that names its objects in order.
#include <array>
#include <bit>
#include <map>

#include <fmt/format.h>

#include "hdf5_structures.hpp"

namespace trireme::data::hdf5 {
namespace {

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

class DenseLinks {
 public:
  explicit DenseLinks(Structures& structures) : structures_(structures) {}
  void run(Object& found);

 private:
  Bytes block(std::uint64_t at, std::uint64_t size, const char* signature) {
    return structures_.block(at, size, signature);
  }
  void rows(std::uint64_t at, std::uint64_t offset, std::uint64_t count, int depth);
  void direct_block(std::uint64_t at, std::uint64_t offset, std::uint64_t size);
  void names(std::uint64_t at, std::uint64_t records, std::uint64_t depth, Object& found);
  void name_record(Bytes& node, Object& found);

  Structures& structures_;
  std::uint64_t head_ = nowhere;           // of the heap
  std::map<std::uint64_t, Block> blocks_;  // by offset in the heap
};

void DenseLinks::run(Object& found) {
  head_ = found.heap;
  Bytes heap = block(found.heap, 146, "FRHP");
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
  Bytes tree = block(found.names, 38, "BTHD");
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

void DenseLinks::direct_block(std::uint64_t at, std::uint64_t offset, std::uint64_t size) {
  if (at > structures_.size() || size > structures_.size() - at) {
    damaged("a heap of links lies outside of the file");
  }
  Bytes begin = block(at, 17, "FHDB");
  begin.expect(0, 1, "a heap of links is of another version");
  begin.expect(head_, 8, "a block belongs to another heap");
  begin.expect(offset, 4, "a block lies elsewhere in its heap");
  blocks_[offset] = {at, size};
}

void DenseLinks::rows(std::uint64_t at, std::uint64_t offset, std::uint64_t count, int depth) {
  if (count > heap_rows || depth > 8) damaged("a heap of links has too many rows");
  Bytes bytes = block(at, 17 + 8 * heap_width * count + 4, "FHIB");
  bytes.expect(0, 1, "a heap of links is of another version");
  bytes.expect(head_, 8, "a block belongs to another heap");
  bytes.expect(offset & 0xFFFFFFFFU, 4, "a block lies elsewhere in its heap");
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

void DenseLinks::names(std::uint64_t at, std::uint64_t records, std::uint64_t depth,
                       Object& found) {
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
  Bytes node = block(at, node_bytes, depth == 0 ? "BTLF" : "BTIN");
  node.expect(0, 1, "an index of links is of another version");
  node.expect(5, 1, "an index of links is of another kind");
  for (std::uint64_t i = 0; i < records; ++i) name_record(node, found);
  for (std::uint64_t i = 0; depth > 0 && i <= records; ++i) {
    const std::uint64_t child = node.number(8), own = node.number(1);
    node.skip(sum_bytes);
    names(child, own, depth - 1, found);
  }
}

void DenseLinks::name_record(Bytes& node, Object& found) {
  constexpr std::uint64_t block_head = 21;
  node.skip(4);  // hash of the name
  node.expect(0, 1, "a link lies elsewhere than in its heap");
  const std::uint64_t offset = node.number(4), length = node.number(2);
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) damaged("a link lies outside of its heap");
  const auto& [begin, place] = *std::prev(next);
  const std::uint64_t inside = offset - begin;
  if (inside < block_head || inside > place.size || length > place.size - inside) {
    damaged("a link lies outside of its heap");
  }
  Bytes body = structures_.read(place.address + inside, length);
  take_link(body, found);
}

}  // namespace

void take_dense_links(Structures& structures, Object& found) { DenseLinks(structures).run(found); }

}  // namespace trireme::data::hdf5
