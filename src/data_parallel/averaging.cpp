#include "trireme/data_parallel/averaging.hpp"

#include <algorithm>

namespace trireme::data_parallel {

using States = AverageConfig::States;

AverageSchedule::AverageSchedule(const AverageConfig& config, std::int64_t batch,
                                 std::int64_t windows, std::int64_t last_step)
    : every_(config.every),
      per_epoch_(config.per_epoch),
      batch_(batch),
      windows_(windows),
      last_step_(last_step) {}

bool AverageSchedule::due(std::int64_t step, std::int64_t samples) const {
  if (step >= last_step_) return true;
  if (per_epoch_ == 0) return step % every_ == 0;
  const auto parts = [&](std::int64_t seen) { return seen * per_epoch_ / windows_; };
  return parts(samples) > parts(samples - batch_);
}

std::int64_t Averaging::outer_bytes(const AverageConfig& config, const params::Layout& layout) {
  const std::int64_t buffers = config.has_outer() ? 2 : 0;
  return buffers * layout.elements() * std::int64_t{sizeof(float)};
}

std::int64_t Averaging::summed_buffers(const AverageConfig& config, std::int64_t states) {
  return 1 + (config.states() == States::average ? states : 0);
}

Averaging::Averaging(const AverageConfig& config, parallel::Replica& replica,
                     comm::Communicator& workers, std::int64_t bucket_elements,
                     device::MemoryLedger& ledger)
    : config_(config),
      replica_(replica),
      workers_(workers),
      bucket_elements_(bucket_elements),
      stream_(ledger.device()) {
  const params::Layout& layout = replica.stage().layout();
  const auto bytes = static_cast<std::size_t>(outer_bytes(config, layout));
  if (bytes == 0) return;
  outer_buffer_ = device::Buffer(ledger, device::Use::optimizer, bytes);
  last_ = outer_buffer_.view(DType::f32, {layout.elements()});
  momentum_ = outer_buffer_.view(DType::f32, {layout.elements()}, bytes / 2);
}

void Averaging::begin() {
  if (last_) replica_.ops().copy(last_, replica_.state().parameters());
}

void Averaging::sum(const Tensor& flat, double factor) {
  std::vector<device::Event> sums;
  for (std::int64_t at = 0; at < flat.elements(); at += bucket_elements_) {
    const Tensor bucket = flat.slice(0, at, std::min(at + bucket_elements_, flat.elements()));
    sums.push_back(workers_.all_reduce(bucket, comm::Reduction::sum, stream_));
  }
  for (const device::Event& event : sums) event.wait();
  replica_.ops().scale(flat, static_cast<float>(factor));
}

/// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in
/// the form of DiLoCo's reference: with gradient g = last model − mean, momentum u ← μu + g and
/// model ← model − η(g + μu).
void Averaging::step_outer() {
  ops::Ops& ops = replica_.ops();
  const Tensor& parameters = replica_.state().parameters();
  const double rate = config_.outer_learning_rate, momentum = config_.outer_momentum;
  ops.add(parameters, last_, parameters);  // the gradient: these are minus the mean
  ops.sgd(last_, momentum_, parameters, static_cast<float>(rate * momentum),
          static_cast<float>(momentum), 0, 1);
  ops.scale(parameters, static_cast<float>(-rate));
  ops.add(last_, last_, parameters);
  ops.copy(parameters, last_);
}

void Averaging::average(std::int64_t updates) {
  const double share = 1.0 / workers_.size();
  sum(replica_.state().parameters(), last_ ? -share : share);
  if (last_) step_outer();
  for (const auto& state : replica_.optimizer().states()) {
    switch (config_.states()) {
      case States::keep:
        break;
      case States::average:
        sum(state.flat, share);
        break;
      case States::reset:
        replica_.ops().fill(state.flat, 0);
        break;
    }
  }
  replica_.refresh(updates);
}

}  // namespace trireme::data_parallel
