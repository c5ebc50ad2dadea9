// What data-parallel methods other than all-reduce hold in memory, before any of it is taken.
#pragma once

#include <cstdint>
#include <map>

#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::data_parallel {

/// Adds what the configured method makes a rank of `stage` hold; nothing for all-reduce. Everything
/// else in `question` is known. `place`: the servers, where there are any.
void add_method_memory(plan::MemoryQuestion& question, const train::RunConfig& config,
                       const parallel::Stage& stage, const ServerPlace& place);

/// Bytes at most, by use, of a parameter server of such workers.
std::map<device::Use, std::int64_t> predict_server_memory(const parallel::Stage& worker,
                                                          const ServerPlace& place,
                                                          const train::RunConfig& config);

}  // namespace trireme::data_parallel
