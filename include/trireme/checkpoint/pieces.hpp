// What a rank's flat buffers hold of the logical tensors, in any layout: boxes to save, boxes to
// load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::checkpoint {

/// How data ranks divide the writing of state that several of them hold. Whole state is cut into as
/// many shares as there are data ranks. Sharded state is written by the first shard group, which is
/// the first data ranks.
struct Writers {
  int data_rank = 0;
  int data = 1;  // ranks on the data axis
};

/// Appends a piece named `prefix/ROW` for every box of a row that this rank is to write. Over all
/// ranks of the grid that makes each element once: not the copies on further tensor ranks (rows
/// that are not split, shared key/value heads), on further stages (tied rows) or data ranks.
/// `flat` is a buffer of `state`'s layout: parameters or an optimizer's moment, either whole
/// [layout.elements], or `sharded` [shards.elements]. The pieces are views of it.
void append_pieces(std::vector<Piece>& pieces, const std::string& prefix,
                   const state::ModelState& state, const Tensor& flat, bool sharded,
                   const Writers& writers);

/// Elements of the pieces that append_pieces makes of one such buffer, from the layout alone.
std::int64_t piece_elements(const params::Layout& layout, const state::ShardMap& shards,
                            bool sharded, const Writers& writers);

/// The same for every rank among which `shares` divides such buffers, by rank.
std::vector<std::int64_t> piece_elements(const params::Layout& layout,
                                         const state::ShardMap& shares);

/// The reverse: fills all that this rank holds, copies too, from a checkpoint of any layout, and
/// the gaps between blocks with zeros; `flat` is where the state's parameters() are, of fp32 or
/// rounded to its type. Not collective. Throws what Reader::read does, and Error where an element
/// is NaN or infinite.
void load_pieces(const Reader& reader, const std::string& prefix, const state::ModelState& state,
                 const Tensor& flat, bool sharded);
/// In place of load_pieces, where a checkpoint has nothing of it: all of `flat` is zero.
void clear_pieces(const state::ModelState& state, const Tensor& flat);

}  // namespace trireme::checkpoint
