#include "trireme/state/tensor_sums.hpp"

#include <algorithm>

#include "trireme/core/pairwise.hpp"

namespace trireme::state {

namespace {

/// Σ tensors[i] into the first, as a balanced tree.
void add_tree(ops::Ops& ops, const std::vector<Tensor>& tensors) {
  add_pairwise(static_cast<std::int64_t>(tensors.size()), [&](std::int64_t to, std::int64_t from) {
    const Tensor& sum = tensors[static_cast<std::size_t>(to)];
    ops.add(sum, sum, tensors[static_cast<std::size_t>(from)]);
  });
}

}  // namespace

TensorSums::Pack TensorSums::plan(const params::Layout& layout, const params::Group& group,
                                  const model::Shares& shares) {
  Pack pack;
  int last_row = -1;
  for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    const std::int64_t offset = block.offset - group.elements.begin;
    if (block.slices.empty()) {
      if (!shares.sequence_parallel) continue;
      pack.pieces.push_back({0, offset, pack.elements, block.elements()});
      pack.elements += block.elements();
      continue;
    }
    if (block.row == last_row) continue;  // done with the row's first tile
    last_row = block.row;
    const params::Parameter& row = layout.table().row(block.row);
    for (const params::SharedGrain& grain : params::shared_grains(row, shares.tiles.all)) {
      for (int own : layout.blocks_of(block.row)) {
        const params::Block& tile = layout.blocks()[static_cast<std::size_t>(own)];
        const params::Range held = params::elements_of(row, tile, grain);
        if (held.size() == 0) continue;
        pack.pieces.push_back({tile.tile - shares.tiles.first,
                               tile.offset - group.elements.begin + held.begin, pack.elements,
                               held.size()});
      }
      pack.elements += grain.along.size() * row.shape.elements() / row.shape[0];
    }
  }
  return pack;
}

std::int64_t TensorSums::largest_message(const params::Layout& layout,
                                         const model::Shares& shares) {
  std::int64_t largest = 0;
  for (const params::Group& group : layout.groups()) {
    largest = std::max(largest, plan(layout, group, shares).elements);
  }
  return largest;
}

std::int64_t TensorSums::bytes(const params::Layout& layout, const model::Shares& shares) {
  return largest_message(layout, shares) * shares.tiles.count *
         static_cast<std::int64_t>(sizeof(float));
}

TensorSums::TensorSums(const ModelState& state, device::MemoryLedger& ledger) : state_(state) {
  const params::Layout& layout = state.layout();
  const model::Shares& shares = state.options().shares;
  for (const params::Group& group : layout.groups()) packs_.push_back(plan(layout, group, shares));
  const std::int64_t size = bytes(layout, shares);
  if (size > 0) {
    buffer_ = device::Buffer(ledger, device::Use::communication, static_cast<std::size_t>(size));
  }
}

void TensorSums::join(int group, int set, ops::Ops& ops, const model::TensorGroup& tensor) const {
  const params::Layout& layout = state_.layout();
  const params::Group& members = layout.groups()[static_cast<std::size_t>(group)];
  const Tensor whole = state_.group_gradient(group, set);
  for (std::int64_t b = members.blocks.begin; b < members.blocks.end; ++b) {
    const params::Block& block = layout.blocks()[static_cast<std::size_t>(b)];
    if (!block.slices.empty() || state_.copies() == 1) continue;
    const std::int64_t begin = block.offset - members.elements.begin;
    std::vector<Tensor> copies{
        whole.slice(0, begin, begin + block.elements()).reshape(block.shape)};
    for (int copy = 0; copy + 1 < state_.copies(); ++copy) {
      copies.push_back(state_.gradient_copy(static_cast<int>(b), set, copy));
    }
    add_tree(ops, copies);
  }
  if (const Tensor other = state_.tied_gradient(group, set)) ops.add(whole, whole, other);

  const Pack& pack = packs_[static_cast<std::size_t>(group)];
  if (pack.elements == 0) return;
  const int tiles = state_.options().shares.tiles.count;
  std::vector<Tensor> packed;
  for (int i = 0; i < tiles; ++i) {
    packed.push_back(buffer_.view(DType::f32, {pack.elements},
                                  static_cast<std::size_t>(i * pack.elements) * sizeof(float)));
    ops.fill(packed.back(), 0);
  }
  const auto move = [&](const Piece& piece, bool in) {
    const Tensor own = whole.slice(0, piece.offset, piece.offset + piece.elements);
    const Tensor there = packed[in ? static_cast<std::size_t>(piece.tile) : 0].slice(
        0, piece.packed, piece.packed + piece.elements);
    const Shape row{1, piece.elements};
    ops.copy((in ? there : own).reshape(row), (in ? own : there).reshape(row));
  };
  for (const Piece& piece : pack.pieces) move(piece, true);
  add_tree(ops, packed);
  tensor.group.all_reduce(packed.front(), comm::Reduction::sum, tensor.stream).wait();
  for (const Piece& piece : pack.pieces) move(piece, false);
}

}  // namespace trireme::state
