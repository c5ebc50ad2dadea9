// What a run will hold in memory, by use, before any of it is taken.
#pragma once

#include <cstdint>
#include <map>

#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/optim/config.hpp"

namespace trireme::plan {

/// What the prediction depends on beside the model.
struct MemoryQuestion {
  optim::OptimConfig optim;
  std::int64_t rows = 0;       // tokens of a micro-batch
  std::int64_t sequence = 0;   // tokens of a sequence
  int threads = 1;             // of this rank
  std::size_t grid_bytes = 0;  // what the grid's groups take at the start
  int data = 1;                // ranks on the data axis
  std::int64_t bucket_elements = 0;
};

/// Bytes of one rank at most, by use, from the parameter table and the stage's layout.
std::map<device::Use, std::int64_t> predict_memory(const model::Transformer& model,
                                                   const MemoryQuestion& question);

}  // namespace trireme::plan
