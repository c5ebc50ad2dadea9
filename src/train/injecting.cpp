// Faults made on purpose (train.inject), where they strike.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "trireme/parallel/placement.hpp"

#include "trainer.hpp"

namespace trireme::train {

bool Trainer::fault_due(Fault::Kind kind) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return fault.kind == kind && fault.step == step_ + 1 && fault.rank == session_.rank();
  });
}

void Trainer::inject_into_batch(data::Batch& batch) const {
  if (fault_due(Fault::Kind::nan)) {
    batch.weights.front() = std::numeric_limits<float>::quiet_NaN();
  }
}

void Trainer::inject_into_gradients() {
  const bool spikes = std::any_of(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return fault.kind == Fault::Kind::spike && fault.step == step_ + 1;
  });
  const bool infinite = fault_due(Fault::Kind::inf);
  for (int group = 0; group < replica_.state().shards().groups(); ++group) {
    const Tensor own = replica_.state().own_gradient(group);
    if (spikes) replica_.ops().scale(own, 1e6F);
    if (infinite) {
      replica_.ops().fill(own, std::numeric_limits<float>::infinity());
    }
  }
  if (spikes || infinite) replica_.gradients_changed();
}

void Trainer::inject_into_weights() {
  if (!fault_due(Fault::Kind::flip)) return;
  const parallel::Flip flip =
      parallel::flip_bit(replica_, static_cast<std::uint64_t>(config_.train.seed),
                         static_cast<std::uint64_t>(step_ + 1));
  fmt::print(stderr, "injected after step {}: rank {}: {}\n", step_ + 1, session_.rank(),
             flip.to_string());
}

}  // namespace trireme::train
