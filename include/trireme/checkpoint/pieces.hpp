// What a rank's flat buffers hold of the logical tensors, in any layout: boxes to save, boxes to
// load.
#pragma once

#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::checkpoint {

/// How the ranks that hold the same state share out the work of writing it.
struct Writers {
  int data = 1;  // ranks on the data axis: what is whole on each is cut into as many shares
  int data_rank = 0;
  int shard_group = 0;  // which of the groups of data ranks that each hold all shards: 0 writes
};

/// Appends a piece named prefix/<row> for every box of a row that this rank is to write. Over all
/// ranks of the grid that makes each element once: not the copies on further tensor ranks (rows
/// that are not split, shared key/value heads), on further stages (tied rows) or data ranks.
/// `flat` is a buffer of `state`'s layout: parameters or an optimiser's moment, either whole
/// [layout.elements], or `sharded` [shards.elements]. The pieces are views of it.
void append_pieces(std::vector<Piece>& pieces, const std::string& prefix,
                   const state::ModelState& state, const Tensor& flat, bool sharded,
                   const Writers& writers);

/// The reverse: fills all that this rank holds, copies too, from a checkpoint of any layout, and
/// the gaps between blocks with zeros. Not collective. Throws what Reader::read does.
void load_pieces(const Reader& reader, const std::string& prefix, const state::ModelState& state,
                 const Tensor& flat, bool sharded);

}  // namespace trireme::checkpoint
