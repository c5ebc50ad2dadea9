#include "trireme/parallel/gradient_sums.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "trireme/parallel/gradient_reducer.hpp"

namespace trireme::parallel {

namespace {

/// to = from, behind what the stream did before.
class Conversion final : public device::Operation {
 public:
  /// Fails as one of `before` did, the operations that make `from`.
  Conversion(const Tensor& to, const Tensor& from, device::Stream& stream,
             std::vector<device::Event> before)
      : to_(to),
        from_(from),
        queue_(stream.queue()),
        queued_(!queue_.immediate()),
        before_(std::move(before)) {}

  bool queued() const override { return queued_; }
  void come_after(device::Fence& fence) override { queue_.follow(fence); }
  void start() override {
    for (const device::Event& event : before_) event.check();
  }
  bool test() override {
    // The host's thread has other streams to poll.
    const std::int64_t most = queued_ ? to_.elements() : std::int64_t{1} << 18;
    const std::int64_t count = std::min(most, to_.elements() - done_);
    queue_.convert(to_.type(), at(to_), at(from_), count);
    done_ += count;
    ++steps_;
    return done_ == to_.elements();
  }
  std::shared_ptr<device::Fence> end() override { return queue_.fence(); }
  std::uint64_t steps() const override { return steps_; }

 private:
  std::byte* at(const Tensor& tensor) const {
    return static_cast<std::byte*>(tensor.data()) +
           static_cast<std::size_t>(done_) * size_of(tensor.type());
  }

  Tensor to_, from_;
  device::Queue& queue_;
  bool queued_;
  std::vector<device::Event> before_;
  std::int64_t done_ = 0;
  std::uint64_t steps_ = 0;
};

device::Event convert(const Tensor& to, const Tensor& from, device::Stream& stream,
                      std::vector<device::Event> before = {}) {
  return stream.enqueue(std::make_unique<Conversion>(to, from, stream, std::move(before)));
}

}  // namespace

device::Event GradientSums::all_reduce(const Tensor& data, device::Stream& stream) const {
  if (!rounds()) return group_.all_reduce(data, comm::Reduction::sum, stream);
  const Tensor narrow = narrow_.slice(0, 0, data.elements());
  const device::Event rounded = convert(narrow, data, stream);
  const device::Event summed = group_.all_reduce(narrow, comm::Reduction::sum, stream);
  return convert(data, narrow, stream, {rounded, summed});
}

device::Event GradientSums::reduce_scatter_v(const Tensor& output, const Tensor& input,
                                             std::span<const std::int64_t> counts,
                                             device::Stream& stream) const {
  if (!rounds()) {
    return group_.reduce_scatter_v(output, input, counts, comm::Reduction::sum, stream);
  }
  const Tensor narrow = narrow_.slice(0, 0, input.elements());
  const auto before = counts.first(static_cast<std::size_t>(group_.rank()));
  const std::int64_t first = std::accumulate(before.begin(), before.end(), std::int64_t{0});
  const Tensor own = narrow.slice(0, first, first + output.elements());
  const device::Event rounded = convert(narrow, input, stream);
  const device::Event summed =
      group_.reduce_scatter_v(own, narrow, counts, comm::Reduction::sum, stream);
  return convert(output, own, stream, {rounded, summed});
}

std::int64_t GradientSums::narrow_elements(const Stage& stage, std::int64_t bucket_elements) {
  const StageOptions& options = stage.options();
  const Place& place = options.place;
  if (!options.train || options.served || options.sent_gradients == DType::f32) return 0;
  std::int64_t most = 0;
  if (options.zero == 0) {
    if (place.data == 1) return 0;
    for (const Bucket& bucket : plan_buckets(stage.program(), stage.layout(), bucket_elements)) {
      most = std::max(most, bucket.elements.size());
    }
    return most;
  }
  for (int g = 0; g < stage.shards().groups(); ++g) {
    if (place.shard > 1) {
      most = std::max(most, stage.layout().groups()[static_cast<std::size_t>(g)].elements.size());
    } else if (place.data > 1) {
      most = std::max(most, stage.shards().own(g).size());
    }
  }
  return most;
}

}  // namespace trireme::parallel
