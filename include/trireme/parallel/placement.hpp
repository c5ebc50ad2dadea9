// Replicas held to their word: what several ranks hold as equal is compared by hash.
#pragma once

#include <cstdint>

#include "trireme/comm/grid.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::parallel {

/// Compares every parameter, and every state of the optimiser, that ranks hold as replicas: over
/// the data axis (or a replica group of shards), rows that are not split and shared key/value heads
/// over the tensor axis, tied weights between first and last stage. What is sharded is compared
/// with its replicas alone: tensor ranks cut shards in different places. Collective over the grid.
/// Throws AgreedError, the same on every rank, that names tensor, axis, ranks and `step`.
void check_replicas(const Replica& replica, comm::Grid& grid, std::int64_t step);

}  // namespace trireme::parallel
