// What a rank will hold in memory, by use, before any of it is taken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "trireme/comm/backend.hpp"
#include "trireme/comm/shape.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/optim/config.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::plan {

/// What the work space of the CUDA backend depends on.
struct CudaWork {
  bool plain_attention = false;  // causal masks alone: no documents, no dropout
  bool deterministic_attention = false;
};

/// What a data-parallel method other than all-reduce holds beside what follows from the stage.
struct MethodMemory {
  std::int64_t optimizer = 0, communication = 0;  // bytes
  /// Flat buffers of the layout that checkpoints hold beside parameters and optimizer states, and
  /// whether each data rank saves optimizer states of its own.
  std::int64_t saved_buffers = 0;
  bool own_states = false;
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
  bool alone = false;      // as ReplicaOptions::alone
  MethodMemory method{};
};

/// Whether the prediction is of all that is held for `use`. On a device that is not the host it is
/// not of what libraries and kernels work in, nor of the staging memory of messages. It is of the
/// messages of a worker of parameter servers (`served`), since no tensor passes between workers.
bool predicts_all(device::Use use, bool host, bool served = false);

/// Bytes at most, by use, from the parameter table and the lowered program. Which of them are in
/// the host's memory: device::in_host_memory.
std::map<device::Use, std::int64_t> predict_memory(const parallel::Stage& stage,
                                                   const MemoryQuestion& question);

/// For those who predict a method's memory. Bytes that reductions of at most `most` bytes over
/// `ranks` ranks add to what a group of that kind holds:
std::size_t reduction_bytes(const parallel::Stage& stage, const MemoryQuestion& question,
                            comm::GroupKind kind, int ranks, std::size_t most);
/// Partial sums of a gradient norm.
std::size_t norm_bytes(const parallel::Stage& stage);
/// What a run's ranks agree on at a step's end.
constexpr std::size_t agreement_bytes = 4 * sizeof(double);

}  // namespace trireme::plan
