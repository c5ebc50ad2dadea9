// The ranks of a layout whose memory can differ, so that a plan of any number of ranks takes few.
#pragma once

#include <vector>

#include "trireme/parallel/stage.hpp"

namespace trireme::plan {

/// By tensor rank, the lowest one that holds tiles of the same sizes. `options`: of any stage.
std::vector<int> equal_tensor_ranks(const model::Transformer& model,
                                    parallel::StageOptions options);
/// Tensor ranks of which no two hold tiles of the same sizes; the lowest of each kind, ascending.
/// `options`: of any stage.
std::vector<int> distinct_tensor_ranks(const model::Transformer& model,
                                       parallel::StageOptions options);

/// Copies of the parameters, of `data`, with the stage's context rank, that hold and write
/// (`snapshots`: copies of what they save are counted) more of something than each other rank: no
/// rank's memory exceeds all of theirs.
std::vector<int> fullest_data_ranks(const parallel::Stage& stage, int data, bool snapshots);

}  // namespace trireme::plan
