// Periodic averaging: independent workers, whose models become one after so many steps. McMahan et
// al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017); with an
// outer optimizer: Douillard et al., "DiLoCo" (2023).
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/parallel/replica.hpp"
#include "trireme/train/config.hpp"

namespace trireme::data_parallel {

using train::AverageConfig;

/// After which steps workers average: a function of what all of them know. Pure.
class AverageSchedule {
 public:
  /// `batch`: sequences of all workers in a step; `windows`: of one pass over the data; `last_step`
  /// always ends with an average.
  AverageSchedule(const AverageConfig& config, std::int64_t batch, std::int64_t windows,
                  std::int64_t last_step);
  /// After step `step` (from 1), up to which all workers together have seen `samples` sequences.
  /// With per_epoch = n: whenever another n-th of a pass is over.
  bool due(std::int64_t step, std::int64_t samples) const;

 private:
  std::int64_t every_, per_epoch_, batch_, windows_, last_step_;
};

class Averaging {
 public:
  /// `replica`, which is alone (ReplicaOptions), `workers`, the ranks of other replicas at the same
  /// place, and `ledger`, the replica's, must outlive it.
  Averaging(const AverageConfig& config, parallel::Replica& replica, comm::Communicator& workers,
            std::int64_t bucket_elements, device::MemoryLedger& ledger);

  /// The parameters, the same for all workers now, are what the outer optimizer goes on from: after
  /// they were made or loaded.
  void begin();
  /// Makes one model of the workers': parameters become their mean, in fp32 and by
  /// Communicator::all_reduce's tree, divided by the workers' number last; or with an outer
  /// optimizer what it makes of that mean. The optimizer's state is kept, averaged or zeroed. The
  /// parameters' bits are the same on every worker, and what units read of them too: `updates`, the
  /// same on all, is what stochastic rounding goes by. Collective over the workers.
  void average(std::int64_t updates);

  /// Outer momentum [layout.elements], fp32, the same on every worker; absent without an outer
  /// optimizer. Between begin() or an average and the next step the last model, which is the rest
  /// of the outer optimizer's state, is the parameters themselves.
  const Tensor& outer_momentum() const { return momentum_; }

  /// Bytes of the outer optimizer's state.
  static std::int64_t outer_bytes(const AverageConfig& config, const params::Layout& layout);
  /// Flat buffers of [layout.elements] fp32 that an average sums over the workers; `states`: that
  /// the optimizer keeps.
  static std::int64_t summed_buffers(const AverageConfig& config, std::int64_t states);

 private:
  /// Sums a flat buffer over the workers, in place, and multiplies it.
  void sum(const Tensor& flat, double factor);
  void step_outer();

  AverageConfig config_;
  parallel::Replica& replica_;
  comm::Communicator& workers_;
  std::int64_t bucket_elements_;
  device::Buffer outer_buffer_;
  Tensor last_, momentum_;  // [layout.elements]
  device::Stream stream_;
};

}  // namespace trireme::data_parallel
