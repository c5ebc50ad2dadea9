#include "trireme/state/offload.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "trireme/state/update.hpp"

namespace trireme::state {

namespace {

/// Elements from one slot to the next: those of the largest chunk, up to a cache line's end.
std::int64_t slot_elements(const ShardMap& shards, std::int64_t chunk) {
  constexpr std::int64_t line = 64;
  std::int64_t largest = 0;
  for (int g = 0; g < shards.groups(); ++g) largest = std::max(largest, shards.own(g).size());
  return (std::min(largest, chunk) + line - 1) / line * line;
}

/// A copy that starts after all earlier operations of the stream. Later ones do not wait for it.
class TakeGradient final : public device::Operation {
 public:
  TakeGradient(const Tensor& to, const Tensor& from, device::Queue& stream, device::Queue& copies,
               std::shared_ptr<device::Fence>& arrival)
      : to_(to), from_(from), stream_(stream), copies_(copies), arrival_(arrival) {}
  bool queued() const override { return true; }
  void come_after(device::Fence& fence) override { stream_.follow(fence); }
  void start() override {
    if (const auto before = stream_.fence()) copies_.follow(*before);
    copies_.copy(to_.data(), from_.data(), from_.bytes());
    arrival_ = copies_.fence();
  }
  bool test() override { return true; }
  std::shared_ptr<device::Fence> end() override { return stream_.fence(); }

 private:
  Tensor to_, from_;
  device::Queue& stream_;
  device::Queue& copies_;
  std::shared_ptr<device::Fence>& arrival_;
};

}  // namespace

std::int64_t Offload::bytes(const ShardMap& shards, const StateOptions& options,
                            std::int64_t chunk) {
  const auto value = static_cast<std::int64_t>(size_of(options.shares.compute));
  return shards.elements() * static_cast<std::int64_t>(sizeof(float)) +
         2 * value * slot_elements(shards, chunk);
}

Offload::Offload(const ModelState& state, int threads, std::int64_t chunk,
                 device::MemoryLedger& ledger, bool indexed)
    : state_(state),
      device_(ledger.device()),
      cpu_(ops::make_cpu_ops(threads)),
      gradient_buffer_(device::Buffer::staging(
          ledger, device::Use::offloaded,
          static_cast<std::size_t>(state.shards().elements()) * sizeof(float))),
      arrivals_(static_cast<std::size_t>(state.shards().groups())),
      copies_(device_.make_queue()) {
  TRIREME_ASSERT(state.options().offloaded() && chunk > 0, "chunks of {}", chunk);
  const ShardMap& shards = state_.shards();
  const DType type = state_.options().shares.compute;
  const std::int64_t most = slot_elements(shards, chunk);
  slot_buffer_ = device::Buffer::staging(ledger, device::Use::offloaded,
                                         2 * static_cast<std::size_t>(most) * size_of(type));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].values =
        slot_buffer_.view(type, {most}, i * static_cast<std::size_t>(most) * size_of(type));
  }
  const Tensor all = gradient_buffer_.view(DType::f32, {shards.elements()});
  const std::vector<optim::UpdateRange> ranges = update_ranges(state_, indexed);
  for (int g = 0; g < shards.groups(); ++g) {
    const std::int64_t first = shards.offset(g), size = shards.own(g).size();
    gradients_.push_back(all.slice(0, first, first + size));
    std::vector<Chunk>& chunks = chunks_.emplace_back();
    for (std::int64_t at = 0; at < size; at += chunk) {
      const std::int64_t end = std::min(at + chunk, size);
      chunks.push_back({.values = state_.own_values(g).slice(0, at, end), .ranges = {}});
    }
    for (const optim::UpdateRange& range : ranges) {
      const std::int64_t begin = range.offset - first;
      if (begin < 0 || begin >= size) continue;
      const std::int64_t end = begin + range.parameters.elements();
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t stop = std::min(end, (at / chunk + 1) * chunk);
        chunks[static_cast<std::size_t>(at / chunk)].ranges.push_back(
            {.parameters = range.parameters.slice(0, at - begin, stop - begin),
             .gradients = gradients_.back().slice(0, at, stop),
             .rounded = {},
             .offset = first + at,
             .decay = range.decay,
             .indices = range.indices.from(at - begin)});
        at = stop;
      }
    }
  }
}

Offload::~Offload() {
  try {
    device_.synchronize();  // it reads the slots
  } catch (...) {           // NOLINT(bugprone-empty-catch): the next computation reports it
  }
}

void Offload::begin_step() {
  if (taken_.empty()) return;
  // The last one taken, since they are copied in order.
  const auto last = static_cast<std::size_t>(taken_.back());
  if (arrivals_[last]) device_.follow(*arrivals_[last]);
  taken_.clear();
}

device::Event Offload::take(int group, device::Stream& stream) {
  const auto g = static_cast<std::size_t>(group);
  if (gradients_[g].elements() == 0) return {};
  taken_.push_back(group);
  return stream.enqueue(std::make_unique<TakeGradient>(gradients_[g], state_.own_gradient(group),
                                                       stream.queue(), *copies_, arrivals_[g]));
}

void Offload::retake() {
  for (const int group : taken_) {
    const auto g = static_cast<std::size_t>(group);
    if (arrivals_[g]) device_.follow(*arrivals_[g]);
    const Tensor gradient = state_.own_gradient(group);
    device_.copy(gradients_[g].data(), gradient.data(), gradient.bytes());
    arrivals_[g] = device_.fence();
  }
}

void Offload::wait_for(const std::shared_ptr<device::Fence>& fence) {
  while (fence && !fence->reached()) {
    device_.check();
    std::this_thread::yield();
  }
}

void Offload::send(const Chunk& chunk, const Fill& fill) {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  wait_for(slot.sent);
  const Tensor values = slot.values.slice(0, 0, chunk.values.elements());
  std::vector<optim::UpdateRange> ranges = chunk.ranges;
  std::int64_t at = 0;
  for (optim::UpdateRange& range : ranges) {
    const std::int64_t end = at + range.parameters.elements();
    range.rounded = values.slice(0, at, end);
    at = end;
  }
  TRIREME_ASSERT(at == values.elements(), "ranges of {} elements in a chunk of {}", at,
                 values.elements());
  fill(ranges);
  device_.copy(chunk.values.data(), values.data(), values.bytes());
  slot.sent = device_.fence();
}

void Offload::update(optim::Optimizer& optimizer, double learning_rate, std::int64_t step,
                     double gradient_scale) {
  const auto shares = static_cast<std::size_t>(
      std::count_if(chunks_.begin(), chunks_.end(), [](const auto& own) { return !own.empty(); }));
  TRIREME_ASSERT(taken_.size() == shares, "gradients of {} of {} groups", taken_.size(), shares);
  for (const int group : taken_) {
    const auto g = static_cast<std::size_t>(group);
    wait_for(arrivals_[g]);
    for (const Chunk& chunk : chunks_[g]) {
      send(chunk, [&](std::span<const optim::UpdateRange> ranges) {
        optimizer.update(*cpu_, ranges, learning_rate, step, gradient_scale);
      });
    }
  }
}

void Offload::refresh(const optim::Optimizer& optimizer, std::int64_t updates) {
  for (const std::vector<Chunk>& chunks : chunks_) {
    for (const Chunk& chunk : chunks) {
      send(chunk, [&](std::span<const optim::UpdateRange> ranges) {
        for (const optim::UpdateRange& range : ranges) optimizer.round(*cpu_, range, updates);
      });
    }
  }
}

}  // namespace trireme::state
