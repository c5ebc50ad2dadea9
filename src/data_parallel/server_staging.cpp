#include "trireme/data_parallel/server_staging.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace trireme::data_parallel {

std::int64_t ServerStaging::bytes(const state::StateOptions& options, const params::Layout& layout,
                                  DType gradients, bool host) {
  const auto sent = static_cast<std::int64_t>(size_of(gradients));
  const auto read = static_cast<std::int64_t>(size_of(options.shares.compute));
  const std::int64_t narrow = gradients == DType::f32 ? 0 : sent;
  return layout.elements() * (narrow + (host ? 0 : std::max(sent, read)));
}

ServerStaging::ServerStaging(const state::ModelState& state, ops::Ops& ops, DType gradients,
                             device::MemoryLedger& ledger)
    : state_(state), ops_(ops), device_(ledger.device()), gradients_(gradients) {
  using device::Buffer;
  using device::Use;
  const state::StateOptions& options = state.options();
  TRIREME_ASSERT(options.served && !state.values_sharded(), "a worker whose state is its own");
  const params::Layout& layout = state.layout();
  const Shape flat{layout.elements()};
  const std::int64_t narrow = bytes(options, layout, gradients, true);
  const std::int64_t staged = bytes(options, layout, gradients, device_.is_host()) - narrow;
  if (narrow > 0) {
    narrow_buffer_ = Buffer(ledger, Use::communication, static_cast<std::size_t>(narrow));
    narrow_ = narrow_buffer_.view(gradients, flat);
  }
  if (device_.is_host()) {
    outgoing_ = narrow_ ? narrow_ : state.gradients();
    return;
  }
  staging_buffer_ = Buffer::staging(ledger, Use::communication, static_cast<std::size_t>(staged));
  outgoing_ = staging_buffer_.view(gradients, flat);
  incoming_ = staging_buffer_.view(options.shares.compute, flat);
  copies_ = device_.make_queue();
}

ServerStaging::~ServerStaging() {
  try {
    device_.synchronize();  // it reads what came last
  } catch (...) {           // NOLINT(bugprone-empty-catch): the next computation reports it
  }
}

std::shared_ptr<device::Fence> ServerStaging::take(const params::Range& elements) {
  Tensor from = state_.gradients().slice(0, elements.begin, elements.end);
  if (narrow()) {
    const Tensor rounded = narrow_.slice(0, elements.begin, elements.end);
    ops_.copy(rounded, from);
    from = rounded;
  }
  if (!copies_) return nullptr;
  // After what computes them, and after what reads the model that came to the same memory.
  if (const auto computed = device_.fence()) copies_->follow(*computed);
  const Tensor to = outgoing(elements);
  copies_->copy(to.data(), from.data(), from.bytes());
  return copies_->fence();
}

Tensor ServerStaging::outgoing(const params::Range& elements) const {
  return outgoing_.slice(0, elements.begin, elements.end);
}

void ServerStaging::begin_receiving() {
  while (delivered_ && !delivered_->reached()) {
    device_.check();
    std::this_thread::yield();
  }
  delivered_.reset();
}

Tensor ServerStaging::incoming(const ServerPart& part) const {
  if (!copies_) return values_of(state_, part);
  return incoming_.slice(0, part.elements.begin, part.elements.end);
}

void ServerStaging::deliver(const ServerPart& part) {
  if (!copies_) return;
  const Tensor to = values_of(state_, part);
  device_.copy(to.data(), incoming(part).data(), to.bytes());
  delivered_ = device_.fence();
}

bool Push::test() {
  if (send_) {
    if (ready_ && !ready_->reached()) return false;
    std::exchange(send_, {})();
  }
  const auto over = [](const auto& future) { return future.ready(); };
  if (!std::all_of(futures_.begin(), futures_.end(), over)) return false;
  for (const auto& future : futures_) future.get();
  futures_.clear();  // and keeps its memory
  return true;
}

}  // namespace trireme::data_parallel
