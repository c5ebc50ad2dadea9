#include "trireme/comm/communicator.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "common.hpp"

namespace trireme::comm {
namespace {

// What the arguments of a collective must keep, checked where it is enqueued.

void require_dense(const Tensor& tensor) {
  TRIREME_ASSERT(tensor || tensor.elements() == 0, "absent tensor");
  TRIREME_ASSERT(tensor.contiguous(), "strided tensor {}", tensor.shape().to_string());
}

void require_reducible(const Tensor& tensor) {
  const DType type = tensor.type();
  TRIREME_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16 ||
                     type == DType::f64 || type == DType::i64,
                 "no reduction of {}", name_of(type));
}

void require_same_type(const Tensor& output, const Tensor& input) {
  require_dense(output);
  require_dense(input);
  TRIREME_ASSERT(output.type() == input.type(), "{} from {}", name_of(output.type()),
                 name_of(input.type()));
}

/// `part` is apart from `whole`, or exactly the stretch of it that begins at byte `own` (unless
/// negative).
void require_apart_or_own(const Tensor& whole, const Tensor& part, std::int64_t own) {
  const std::byte* const begin = bytes_of(whole);
  const std::byte* const first = bytes_of(part);
  if (whole.bytes() == 0 || part.bytes() == 0 || (own >= 0 && first == begin + own)) return;
  const std::less_equal<> before;
  TRIREME_ASSERT(before(first + part.bytes(), begin) || before(begin + whole.bytes(), first),
                 "input and output overlap elsewhere than at the rank's own place, byte {}", own);
}

/// `whole` is divided at `begins` among the ranks, and `part` is this rank's; the two are apart, or
/// the part is its own place in the whole.
void require_divided(const Tensor& whole, const Tensor& part,
                     const std::vector<std::int64_t>& begins, int rank) {
  TRIREME_ASSERT(std::is_sorted(begins.begin(), begins.end()), "a negative count");
  const std::int64_t own = begins[rank + 1] - begins[rank];
  TRIREME_ASSERT(part.elements() == own, "{} elements, count {}", part.elements(), own);
  TRIREME_ASSERT(whole.elements() == begins.back(), "{} elements, counts add up to {}",
                 whole.elements(), begins.back());
  require_apart_or_own(whole, part,
                       begins[rank] * static_cast<std::int64_t>(size_of(whole.type())));
}

void require_rank(int rank, const Communicator& group) {
  TRIREME_ASSERT(rank >= 0 && rank < group.size(), "rank {} of {}", rank, group.size());
}

std::vector<std::int64_t> divided_by(std::span<const std::int64_t> counts,
                                     const Communicator& group) {
  TRIREME_ASSERT(static_cast<int>(counts.size()) == group.size(), "{} counts for {} ranks",
                 counts.size(), group.size());
  return slices_of(counts);
}

/// One message between this rank and `peer`, waited for.
void pass(Communicator& group, const Tensor& data, int peer, bool send) {
  device::Stream stream;
  group.exchange({{data, peer, send}}, stream).wait();
}

template <class T>
T reduce_value(Communicator& group, T value, Reduction reduction) {
  device::Stream stream;
  group.all_reduce(Tensor(&value, {1}), reduction, stream).wait();
  return value;
}

/// Their number, then they themselves.
void send_bytes(Communicator& group, std::vector<std::uint8_t>& bytes, int peer) {
  auto count = static_cast<std::int64_t>(bytes.size());
  pass(group, Tensor(&count, {1}), peer, true);
  pass(group, Tensor(bytes.data(), {count}), peer, true);
}

void append_received(Communicator& group, std::vector<std::uint8_t>& bytes, int peer) {
  std::int64_t count = 0;
  pass(group, Tensor(&count, {1}), peer, false);
  bytes.resize(bytes.size() + static_cast<std::size_t>(count));
  std::uint8_t* const end = bytes.data() + bytes.size();
  pass(group, Tensor(end - count, {count}), peer, false);
}

/// A length before each rank's bytes, so that they stay apart when joined.
std::vector<std::uint8_t> framed(std::span<const std::uint8_t> bytes) {
  const std::uint64_t count = bytes.size();
  std::vector<std::uint8_t> result(sizeof count + bytes.size());
  std::memcpy(result.data(), &count, sizeof count);
  std::copy(bytes.begin(), bytes.end(), result.begin() + sizeof count);
  return result;
}

std::vector<std::vector<std::uint8_t>> apart(const std::vector<std::uint8_t>& joined) {
  std::vector<std::vector<std::uint8_t>> result;
  for (std::size_t at = 0; at < joined.size();) {
    std::uint64_t count = 0;
    std::memcpy(&count, joined.data() + at, sizeof count);
    const auto begin = joined.begin() + static_cast<std::ptrdiff_t>(at + sizeof count);
    result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count));
    at += sizeof count + count;
  }
  return result;
}

/// Every rank's frame, in rank order, on rank 0, along a binomial tree; elsewhere those of a
/// subtree.
std::vector<std::uint8_t> join_frames(Communicator& group, std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> joined = framed(bytes);
  for (int step = 1; step < group.size(); step *= 2) {
    if ((group.rank() & step) != 0) {
      send_bytes(group, joined, group.rank() - step);
      break;
    }
    if (group.rank() + step < group.size()) append_received(group, joined, group.rank() + step);
  }
  return joined;
}

class CopyOperation : public device::Operation {
 public:
  CopyOperation(std::vector<LocalCopy> copies, device::Queue& queue)
      : copies_(std::move(copies)), queue_(queue) {}
  bool queued() const override { return true; }
  void come_after(device::Fence& fence) override { queue_.follow(fence); }
  void start() override {
    for (const LocalCopy& copy : copies_) copy.run(queue_);
  }
  bool test() override { return true; }
  std::shared_ptr<device::Fence> end() override { return queue_.fence(); }

 private:
  std::vector<LocalCopy> copies_;
  device::Queue& queue_;
};

class SelfCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

 protected:
  device::Event start_reduction(SliceReduction job, device::Stream& stream) override {
    return enqueue(copy(job.output, job.data), stream);
  }
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>&, device::Stream& stream) override {
    return enqueue(copy(output, input), stream);
  }
  device::Event start_broadcast(const Tensor&, int, device::Stream& stream) override {
    return enqueue({}, stream);
  }
  device::Event start_exchange(OperationKind /*kind*/, std::vector<Message> messages,
                               device::Stream& stream) override {
    return enqueue(take_own_messages(messages, 0), stream);
  }

 private:
  static std::vector<LocalCopy> copy(const Tensor& output, const Tensor& input) {
    return {{bytes_of(output), bytes_of(input), input.bytes()}};
  }
  static device::Event enqueue(std::vector<LocalCopy> copies, device::Stream& stream) {
    return stream.enqueue(std::make_unique<CopyOperation>(std::move(copies), stream.queue()));
  }
};

}  // namespace

std::string_view name_of(OperationKind kind) {
  constexpr std::array<std::string_view, operation_kinds> names = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "exchange"};
  static_assert(!names.back().empty());
  return names.at(static_cast<std::size_t>(kind));
}

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes += other.bytes;
  operations += other.operations;
  seconds += other.seconds;
  return *this;
}

Traffic TrafficByKind::total() const {
  Traffic sum;
  for (const Traffic& each : kinds) sum += each;
  return sum;
}

TrafficByKind& TrafficByKind::operator+=(const TrafficByKind& other) {
  for (std::size_t kind = 0; kind < operation_kinds; ++kind) kinds[kind] += other.kinds[kind];
  return *this;
}

void TrafficCounter::add(OperationKind kind, const Traffic& traffic) {
  const std::lock_guard lock(mutex_);
  traffic_.kinds[static_cast<std::size_t>(kind)] += traffic;
}

TrafficByKind TrafficCounter::read() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void TrafficCounter::reset() {
  const std::lock_guard lock(mutex_);
  traffic_ = {};
}

device::Event Communicator::all_reduce(const Tensor& data, Reduction reduction,
                                       device::Stream& stream) {
  require_dense(data);
  require_reducible(data);
  SliceReduction job{.data = data.reshape({data.elements()}),
                     .output = {},
                     .begins = even_slices(data.elements(), size()),
                     .reduction = reduction,
                     .gather = true};
  job.output = job.data.slice(0, job.begins[rank()], job.begins[rank() + 1]);
  return carrier(stream).start_reduction(std::move(job), stream);
}

device::Event Communicator::reduce_scatter(const Tensor& output, const Tensor& input,
                                           Reduction reduction, device::Stream& stream) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), output.elements());
  return reduce_scatter_v(output, input, counts, reduction, stream);
}

device::Event Communicator::reduce_scatter_v(const Tensor& output, const Tensor& input,
                                             std::span<const std::int64_t> counts,
                                             Reduction reduction, device::Stream& stream) {
  require_same_type(output, input);
  require_reducible(output);
  std::vector<std::int64_t> begins = divided_by(counts, *this);
  require_divided(input, output, begins, rank());
  return carrier(stream).start_reduction({.data = input.reshape({input.elements()}),
                                          .output = output.reshape({output.elements()}),
                                          .begins = std::move(begins),
                                          .reduction = reduction},
                                         stream);
}

device::Event Communicator::all_gather(const Tensor& output, const Tensor& input,
                                       device::Stream& stream) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), input.elements());
  return all_gather_v(output, input, counts, stream);
}

device::Event Communicator::all_gather_v(const Tensor& output, const Tensor& input,
                                         std::span<const std::int64_t> counts,
                                         device::Stream& stream) {
  require_same_type(output, input);
  const std::vector<std::int64_t> begins = divided_by(counts, *this);
  require_divided(output, input, begins, rank());
  return carrier(stream).start_gather(output, input, begins, stream);
}

device::Event Communicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  require_dense(data);
  require_rank(root, *this);
  return carrier(stream).start_broadcast(data, root, stream);
}

device::Event Communicator::all_to_all(const Tensor& output, const Tensor& input,
                                       device::Stream& stream) {
  require_same_type(output, input);
  TRIREME_ASSERT(output.elements() == input.elements() && output.elements() % size() == 0,
                 "{} from {} by {} ranks", output.elements(), input.elements(), size());
  require_apart_or_own(output, input, -1);
  const std::int64_t block = input.elements() / size();
  const auto part = [&](const Tensor& whole, int rank) {
    return whole.reshape({whole.elements()}).slice(0, rank * block, (rank + 1) * block);
  };
  std::vector<Message> messages{{part(output, rank()), rank(), false},
                                {part(input, rank()), rank(), true}};
  for_each_peer([&](int peer) {
    if (block == 0) return;
    messages.push_back({part(output, peer), peer, false});
    messages.push_back({part(input, peer), peer, true});
  });
  return exchange(std::move(messages), stream, OperationKind::all_to_all);
}

device::Event Communicator::exchange(std::vector<Message> messages, device::Stream& stream,
                                     OperationKind kind) {
  for (const Message& message : messages) {
    require_dense(message.data);
    require_rank(message.peer, *this);
  }
  return carrier(stream).start_exchange(kind, std::move(messages), stream);
}

void Communicator::barrier() { all_reduce(std::int64_t{0}, Reduction::max); }

double Communicator::all_reduce(double value, Reduction reduction) {
  return reduce_value(agreement(), value, reduction);
}

std::int64_t Communicator::all_reduce(std::int64_t value, Reduction reduction) {
  return reduce_value(agreement(), value, reduction);
}

void Communicator::broadcast_bytes(std::vector<std::uint8_t>& bytes, int root) {
  device::Stream stream;
  auto count = static_cast<std::int64_t>(bytes.size());
  agreement().broadcast(Tensor(&count, {1}), root, stream).wait();
  bytes.resize(static_cast<std::size_t>(count));
  agreement().broadcast(Tensor(bytes.data(), {count}), root, stream).wait();
}

std::vector<std::vector<std::uint8_t>> Communicator::all_gather_bytes(
    std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> joined = join_frames(agreement(), bytes);
  broadcast_bytes(joined, 0);
  return apart(joined);
}

std::vector<std::string> Communicator::all_gather_texts(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  std::vector<std::string> all;
  for (const auto& each : all_gather_bytes({bytes, text.size()})) {
    all.emplace_back(each.begin(), each.end());
  }
  return all;
}

std::vector<std::vector<std::uint8_t>> Communicator::gather_bytes(
    std::span<const std::uint8_t> bytes, int root) {
  std::vector<std::uint8_t> joined = join_frames(agreement(), bytes);
  if (root != 0 && rank() == 0) send_bytes(agreement(), joined, root);
  if (rank() != root) return {};
  if (root != 0) {
    joined.clear();
    append_received(agreement(), joined, 0);
  }
  return apart(joined);
}

std::vector<Part> gather_parts(const Communicator& group, std::byte* whole, std::byte* own,
                               const std::vector<std::int64_t>& begins, std::int64_t element) {
  const auto bytes = [&](int rank) {
    return static_cast<std::size_t>((begins[rank + 1] - begins[rank]) * element);
  };
  std::vector<Part> parts;
  group.for_each_peer([&](int peer) {
    if (bytes(peer) > 0) parts.push_back({whole + begins[peer] * element, bytes(peer), peer});
    if (bytes(group.rank()) > 0) parts.push_back({own, bytes(group.rank()), peer, true});
  });
  return parts;
}

std::vector<Part> parts_of(const std::vector<Communicator::Message>& messages) {
  std::vector<Part> parts;
  for (const auto& [data, peer, send] : messages) {
    parts.push_back({bytes_of(data), data.bytes(), peer, send});
  }
  return parts;
}

std::vector<LocalCopy> take_own_messages(std::vector<Communicator::Message>& messages, int rank) {
  std::vector<Tensor> sent;
  std::vector<Tensor> received;
  const auto own = std::stable_partition(messages.begin(), messages.end(),
                                         [&](const auto& each) { return each.peer != rank; });
  for (auto each = own; each != messages.end(); ++each) {
    (each->send ? sent : received).push_back(each->data);
  }
  messages.erase(own, messages.end());
  TRIREME_ASSERT(sent.size() == received.size(), "{} sends and {} receives of rank {} by itself",
                 sent.size(), received.size(), rank);
  std::vector<LocalCopy> copies;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    TRIREME_ASSERT(sent[i].bytes() == received[i].bytes(), "{} bytes sent, {} expected",
                   sent[i].bytes(), received[i].bytes());
    copies.push_back({bytes_of(received[i]), bytes_of(sent[i]), sent[i].bytes()});
  }
  return copies;
}

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace trireme::comm
