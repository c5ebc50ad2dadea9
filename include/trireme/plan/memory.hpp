// What a rank will hold in memory, by use, before any of it is taken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "trireme/comm/backend.hpp"
#include "trireme/comm/shape.hpp"
#include "trireme/data_parallel/config.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/optim/config.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::plan {

/// What the work space of the CUDA backend depends on.
struct CudaWork {
  bool plain_attention = false;  // causal masks alone: no documents, no dropout
  bool deterministic_attention = false;
};

/// What the prediction depends on beside the rank's stage.
struct MemoryQuestion {
  optim::OptimConfig optim;
  int threads = 1;                 // of the rank
  bool host = true;                // computes on CPUs
  std::optional<CudaWork> cuda{};  // computes by the CUDA backend
  comm::GridShape shape;           // of the world
  int rank = 0;                    // in it
  comm::Backends backends{};       // of its groups
  std::int64_t bucket_elements = 0;
  bool snapshots = false;  // some checkpoints are written in the background
  /// The stage is a worker's on its own; the shape's data axis is of workers.
  std::optional<data_parallel::AverageConfig> average{};
  /// Those that hold the stage's optimizer state, where it is `served`.
  std::optional<data_parallel::ServerPlace> servers{};
  bool asynchronous = false;  // as data_parallel::AsyncWorker
};

/// Whether the prediction is of all that is held for `use`. On a device that is not the host it is
/// not of what libraries and kernels work in, nor of the staging memory of messages, but for a
/// worker's of parameter servers (`served`), between whose like no tensor passes.
bool predicts_all(device::Use use, bool host, bool served = false);

/// Bytes at most, by use, from the parameter table and the lowered program. What the device and
/// what the host holds of them, device::in_host_memory tells.
std::map<device::Use, std::int64_t> predict_memory(const parallel::Stage& stage,
                                                   const MemoryQuestion& question);

/// The same of a parameter server of such workers.
std::map<device::Use, std::int64_t> predict_server_memory(const parallel::Stage& worker,
                                                          const data_parallel::ServerPlace& place,
                                                          const optim::OptimConfig& optim,
                                                          bool asynchronous = false);

}  // namespace trireme::plan
