// The interface of data-parallel methods: how a worker's gradients are reduced, and what an update
// is.
#pragma once

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::parallel {

/// One rank's side of a method. The computing thread calls it, on all ranks of the grid in the same
/// order.
class DataParallel {
 public:
  DataParallel() = default;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  virtual ~DataParallel() = default;

  /// Gets what units read from the ranks that hold the model; nothing where this rank holds it.
  virtual void fetch() {}
  /// `gradient` is this rank's summed gradient of `elements` of the flat buffer, its own shard with
  /// ZeRO 1 to 3, once computation has done what it was given. Starts its reduction on `stream`;
  /// the event is done when the memory is the caller's again.
  virtual device::Event reduce(const params::Range& elements, const Tensor& gradient,
                               device::Stream& stream) = 0;
  /// Queues this rank's part of the norm of the summed gradients, after all events of the step.
  virtual void start_norm(ops::Ops& ops) = 0;
  /// The norm, once the device's work has been waited for: the same bits on every rank.
  virtual double finish_norm() = 0;
  /// Update number `step` (from 0) with the summed gradients times `gradient_scale`. Ends the step:
  /// from then on units read the new model.
  virtual void update(double learning_rate, std::int64_t step, double gradient_scale) = 0;
  /// Ends the step instead: its gradients are dropped.
  virtual void skip() {}
};

}  // namespace trireme::parallel
