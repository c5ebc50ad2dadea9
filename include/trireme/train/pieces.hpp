#pragma once
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/state/model_state.hpp"
namespace trireme::train {
struct Writers { int data_rank = 0, data = 1; };
inline void append_pieces(std::vector<checkpoint::Piece>& pieces, const std::string& prefix, const state::ModelState& state, const Tensor& flat, bool, const Writers& w) {
  const auto& l = state.layout();
  for (const auto& b : l.blocks()) {
    pieces.push_back({.name = prefix + "/" + l.table().row(b.row).name, .shape = l.table().row(b.row).shape, .offset = 0,
      .data = flat.slice(0, b.offset, b.offset + b.elements()), .write = w.data_rank == 0});
  }
}
inline void load_pieces(const checkpoint::Reader& r, const std::string& prefix, const state::ModelState& state, const Tensor& flat, bool sharded) {
  const auto& l = state.layout();
  std::vector<params::FlatRange> ranges{{{0, l.elements()}, 0}};
  if (sharded) ranges = state.shards().own_ranges();
  for (const auto& b : l.blocks()) {
    const auto& row = l.table().row(b.row);
    std::vector<float> whole(static_cast<std::size_t>(row.shape.elements()));
    r.read(prefix + "/" + row.name, 0, Tensor(whole.data(), {row.shape.elements()}));
    l.for_each_run(b, [&](const params::Run& run) {
      for (std::int64_t i = 0; i < run.elements; ++i) {
        const std::int64_t at = b.offset + run.local + i;
        for (const auto& range : ranges) if (at >= range.elements.begin && at < range.elements.end)
          flat.as<float>()[range.offset + at - range.elements.begin] = whole[static_cast<std::size_t>(run.logical + i)];
      }
    });
  }
}
}  // namespace trireme::train
