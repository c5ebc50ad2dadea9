#include "trireme/parallel/data_parallel.hpp"

namespace trireme::parallel {

namespace {

/// With ZeRO 0 every data rank holds all gradients and reads its share of them. With ZeRO 1 to 3
/// the ranks of the first shard group read their shards.
state::GradientNorm norm_of(const Stage& stage, const state::ModelState& state,
                            device::MemoryLedger& ledger) {
  const Place& place = stage.options().place;
  const bool train = stage.options().train;
  if (stage.options().zero > 0) {
    return state::GradientNorm(state, stage.shards(), train && place.data_rank < place.shard,
                               ledger);
  }
  return state::GradientNorm(state, state::ShardMap(stage.layout(), place.data, place.data_rank),
                             train, ledger);
}

}  // namespace

AllReduce::AllReduce(const Parts& parts, device::MemoryLedger& ledger)
    : parts_(parts), norm_(norm_of(parts.stage, parts.state, ledger)) {
  if (!parts.stage.options().train) return;
  ranges_ = state::update_ranges(parts.state, parts.stochastic_rounding);
}

device::Event AllReduce::reduce(const params::Range& /*elements*/, const Tensor& gradient,
                                device::Stream& stream) {
  return parts_.replicas.all_reduce(gradient, stream);
}

void AllReduce::update(double learning_rate, std::int64_t step, double gradient_scale) {
  if (parts_.offload != nullptr) {
    parts_.offload->update(parts_.optimizer, learning_rate, step, gradient_scale);
  } else {
    parts_.optimizer.update(parts_.ops, ranges_, learning_rate, step, gradient_scale);
  }
}

}  // namespace trireme::parallel
