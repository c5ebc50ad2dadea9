#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/comm/nccl.hpp"

#include "checks.hpp"
#include "local.hpp"
#include "nccl_operation.hpp"
#include "slices.hpp"

namespace trireme::comm {
namespace {

using Steps = NcclOperation::Steps;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

/// Elements of one contribution that are added at once.
std::int64_t piece_elements(int size, std::int64_t longest, std::int64_t element,
                            std::size_t scratch) {
  const std::size_t share = scratch / static_cast<std::size_t>(std::max(size - 1, 1)) / 64 * 64;
  const std::int64_t most = static_cast<std::int64_t>(share) / element;
  return std::min(std::max<std::int64_t>(most, 64 / element), longest);
}

/// Bytes from one contribution in scratch to the next.
std::int64_t lane(std::int64_t piece, std::int64_t element) {
  return static_cast<std::int64_t>(device::aligned(static_cast<std::size_t>(piece * element)));
}

/// A step of copies within this rank's memory.
std::function<bool()> copied(std::vector<LocalCopy> copies, device::Queue& queue) {
  return [copies = std::move(copies), &queue] {
    for (const LocalCopy& copy : copies) copy.run(queue);
    return true;
  };
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclRuntime& runtime, std::unique_ptr<Communicator> mpi, const std::string& name,
                   const std::string& key)
      : runtime_(runtime), mpi_(std::move(mpi)), handle_(runtime, *mpi_, name, key) {}

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }

  using Communicator::all_reduce;
  device::Event all_reduce(const Tensor& data, Reduction reduction,
                           device::Stream& stream) override;
  device::Event reduce_scatter_v(const Tensor& output, const Tensor& input,
                                 std::span<const std::int64_t> counts, Reduction reduction,
                                 device::Stream& stream) override;
  device::Event all_gather_v(const Tensor& output, const Tensor& input,
                             std::span<const std::int64_t> counts, device::Stream& stream) override;
  device::Event broadcast(const Tensor& data, int root, device::Stream& stream) override;
  device::Event all_to_all(const Tensor& output, const Tensor& input,
                           device::Stream& stream) override;
  device::Event exchange(std::vector<Message> messages, device::Stream& stream) override;

  TrafficByKind traffic() const override {
    TrafficByKind sum = counter_.read();
    return sum += mpi_->traffic();
  }
  void reset_traffic() override {
    counter_.reset();
    mpi_->reset_traffic();
  }

 protected:
  Communicator& agreement() override { return agreement_of(*mpi_); }

 private:
  /// A reduction of slices, rank r's being elements [begins[r], begins[r + 1]) of `data`.
  struct Sum {
    Tensor data, output;  // the output is this rank's
    std::vector<std::int64_t> begins;
    Reduction reduction = Reduction::sum;
    bool gather = false;  // everyone gets all slices; `output` is this rank's place in `data`
    std::int64_t element() const { return static_cast<std::int64_t>(size_of(data.type())); }
    std::int64_t count(int rank) const { return begins[rank + 1] - begins[rank]; }
    std::byte* at(std::int64_t index) const { return bytes_of(data) + index * element(); }
  };

  bool of_host(const device::Stream& stream) const {
    if (stream.device().is_host()) return true;
    TRIREME_ASSERT(&stream.device() == &runtime_.ledger().device(), "a stream of {}",
                   stream.device().name());
    return false;
  }
  device::Event enqueue(OperationKind kind, std::int64_t sent, std::function<Steps()> plan,
                        device::Stream& stream) {
    NcclOperation::Job job{.kind = kind, .sent = sent, .plan = std::move(plan)};
    return stream.enqueue(
        std::make_unique<NcclOperation>(handle_, stream.queue(), counter_, std::move(job)));
  }
  template <class Visit>
  void for_each_peer(const Visit& visit) const {  // the successor first
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size());
  }
  bool library_sum(const Tensor& data, Reduction reduction) const {
    const DType type = data.type();
    return runtime_.options().library_sums && reduction == Reduction::sum &&
           (type == DType::f32 || type == DType::f64 || type == DType::i64);
  }
  Steps own_sum(const Sum& sum, device::Queue& queue);
  Steps library_scatter(const Sum& sum, device::Queue& queue);
  std::int64_t sent_by(const Sum& sum) const;
  bool gather_slices(const Sum& sum, device::Queue& queue);
  std::byte* scratch(std::size_t bytes);
  /// Parts that bring every rank's `own` to its place in everyone's memory.
  std::vector<NcclPart> spread(const std::vector<NcclPart>& places, const NcclPart& own) const;

  NcclRuntime& runtime_;
  std::unique_ptr<Communicator> mpi_;
  device::Buffer scratch_;
  NcclHandle handle_;  // ends first: then no work on the scratch memory is left
};

std::byte* NcclCommunicator::scratch(std::size_t bytes) {
  if (scratch_.bytes() < bytes) {
    scratch_ = device::Buffer();  // never both at once; waits for what uses it
    scratch_ = device::Buffer(runtime_.ledger(), device::Use::communication, bytes);
  }
  return scratch_.data();
}

std::int64_t NcclCommunicator::sent_by(const Sum& sum) const {
  const std::int64_t own = sum.count(rank());
  const std::int64_t others = sum.begins.back() - own;
  return (others + (sum.gather ? own * (size() - 1) : 0)) * sum.element();
}

/// Piece by piece: everyone's contribution to this rank's slice comes to scratch memory and is
/// added there; results go out together at the end, when no contribution is needed any more.
Steps NcclCommunicator::own_sum(const Sum& sum, device::Queue& queue) {
  std::int64_t longest = 0;
  for (int r = 0; r < size(); ++r) longest = std::max(longest, sum.count(r));
  if (longest == 0) return {};
  const std::int64_t element = sum.element();
  const std::int64_t piece = piece_elements(size(), longest, element, runtime_.options().scratch);
  const std::int64_t stride = lane(piece, element);
  std::byte* const room = scratch(static_cast<std::size_t>(stride * (size() - 1)));
  const auto lane_of = [=, own = rank()](int r) { return room + (r < own ? r : r - 1) * stride; };
  const char* const name = sum.gather ? "all_reduce" : "reduce_scatter";

  Steps steps;
  for (std::int64_t done = 0; done < longest; done += piece) {
    const auto part_of = [=](int r) {
      return std::clamp<std::int64_t>(sum.count(r) - done, 0, piece);
    };
    const std::int64_t own = part_of(rank());
    steps.emplace_back([=, this, &queue] {
      std::vector<NcclPart> parts;
      for_each_peer([&](int peer) {
        parts.push_back({lane_of(peer), static_cast<std::size_t>(own * element), peer, false});
        parts.push_back({sum.at(sum.begins[peer] + done),
                         static_cast<std::size_t>(part_of(peer) * element), peer, true});
      });
      return issue_parts(handle_, name, parts, queue);
    });
    if (own == 0) continue;
    steps.emplace_back([=, this, &queue] {
      std::vector<const std::byte*> contributions;
      for (int r = 0; r < size(); ++r) {
        contributions.push_back(r == rank() ? sum.at(sum.begins[r] + done) : lane_of(r));
      }
      queue.reduce(sum.data.type(), sum.reduction, contributions,
                   bytes_of(sum.output) + done * element, own);
      return true;
    });
  }
  if (sum.gather) steps.emplace_back([=, this, &queue] { return gather_slices(sum, queue); });
  return steps;
}

std::vector<NcclPart> NcclCommunicator::spread(const std::vector<NcclPart>& places,
                                               const NcclPart& own) const {
  std::vector<NcclPart> parts;
  for_each_peer([&](int peer) {
    parts.push_back({places[peer].data, places[peer].bytes, peer, false});
    parts.push_back({own.data, own.bytes, peer, true});
  });
  return parts;
}

bool NcclCommunicator::gather_slices(const Sum& sum, device::Queue& queue) {
  std::vector<NcclPart> places;
  for (int r = 0; r < size(); ++r) {
    places.push_back(
        {sum.at(sum.begins[r]), static_cast<std::size_t>(sum.count(r) * sum.element())});
  }
  return issue_parts(handle_, "all_reduce", spread(places, places[rank()]), queue);
}

device::Event NcclCommunicator::all_reduce(const Tensor& data, Reduction reduction,
                                           device::Stream& stream) {
  if (of_host(stream)) return mpi_->all_reduce(data, reduction, stream);
  checks::reducible(data);
  Sum sum{.data = data,
          .output = {},
          .begins = even_slices(data.elements(), size()),
          .reduction = reduction,
          .gather = true};
  sum.output = {sum.at(sum.begins[rank()]), data.type(), {sum.count(rank())}};
  const bool by_library = library_sum(data, reduction);
  return enqueue(
      OperationKind::all_reduce, sent_by(sum),
      [=, this, &stream]() -> Steps {
        device::Queue& queue = stream.queue();
        if (!by_library) return own_sum(sum, queue);
        if (data.elements() == 0) return {};
        return {[=, this, &queue] {
          return handle_.issue("all_reduce", [&](NcclApi& api, NcclApi::Comm comm) {
            return api.all_reduce(data.data(), static_cast<std::size_t>(data.elements()),
                                  data.type(), comm, queue.native());
          });
        }};
      },
      stream);
}

Steps NcclCommunicator::library_scatter(const Sum& sum, device::Queue& queue) {
  const auto elements = [sum](int r) { return static_cast<std::size_t>(sum.count(r)); };
  bool even = true;
  for (int r = 0; r < size(); ++r) even = even && elements(r) == elements(0);
  if (sum.data.elements() == 0) return {};
  if (even) {
    return {[=, this, &queue] {
      return handle_.issue("reduce_scatter", [&](NcclApi& api, NcclApi::Comm comm) {
        return api.reduce_scatter(sum.data.data(), sum.output.data(), elements(0), sum.data.type(),
                                  comm, queue.native());
      });
    }};
  }
  return {[=, this, &queue] {
    return handle_.issue_group("reduce_scatter", [&](NcclApi& api, NcclApi::Comm comm) {
      for (int r = 0; r < size(); ++r) {
        if (elements(r) == 0) continue;
        const NcclApi::Result result =
            api.reduce(sum.at(sum.begins[r]), r == rank() ? sum.output.data() : nullptr,
                       elements(r), sum.data.type(), r, comm, queue.native());
        if (result != NcclApi::Result::success && result != NcclApi::Result::in_progress) {
          return result;
        }
      }
      return NcclApi::Result::success;
    });
  }};
}

device::Event NcclCommunicator::reduce_scatter_v(const Tensor& output, const Tensor& input,
                                                 std::span<const std::int64_t> counts,
                                                 Reduction reduction, device::Stream& stream) {
  if (of_host(stream)) return mpi_->reduce_scatter_v(output, input, counts, reduction, stream);
  checks::scatter(output, input, counts, *this);
  Sum sum{.data = input, .output = output, .begins = slices_of(counts), .reduction = reduction};
  const bool by_library = library_sum(input, reduction);
  return enqueue(
      OperationKind::reduce_scatter, sent_by(sum),
      [=, this, &stream] {
        return by_library ? library_scatter(sum, stream.queue()) : own_sum(sum, stream.queue());
      },
      stream);
}

device::Event NcclCommunicator::all_gather_v(const Tensor& output, const Tensor& input,
                                             std::span<const std::int64_t> counts,
                                             device::Stream& stream) {
  if (of_host(stream)) return mpi_->all_gather_v(output, input, counts, stream);
  checks::gather(output, input, counts, *this);
  const std::size_t element = size_of(output.type());
  std::vector<NcclPart> places;
  std::byte* place = bytes_of(output);
  for (const std::int64_t count : counts) {
    places.push_back({place, static_cast<std::size_t>(count) * element});
    place += places.back().bytes;
  }
  const NcclPart own{bytes_of(input), input.bytes()};
  const bool even = std::all_of(counts.begin(), counts.end(),
                                [&](std::int64_t count) { return count == counts[0]; });
  const LocalCopy copy{places[rank()].data, own.data, own.bytes};
  return enqueue(
      OperationKind::all_gather, static_cast<std::int64_t>(own.bytes) * (size() - 1),
      [=, this, &stream]() -> Steps {
        device::Queue& queue = stream.queue();
        if (even && own.bytes == 0) return {};
        if (!even) {
          return {copied({copy}, queue), [=, this, &queue] {
                    return issue_parts(handle_, "all_gather", spread(places, own), queue);
                  }};
        }
        return {[=, this, &queue] {
          return handle_.issue("all_gather", [&](NcclApi& api, NcclApi::Comm comm) {
            return api.all_gather(own.data, places[0].data, own.bytes, comm, queue.native());
          });
        }};
      },
      stream);
}

device::Event NcclCommunicator::broadcast(const Tensor& data, int root, device::Stream& stream) {
  if (of_host(stream)) return mpi_->broadcast(data, root, stream);
  checks::dense(data);
  checks::peer(root, *this);
  // As if the root sent to everyone: what each rank really sends is NCCL's affair.
  const std::int64_t sent =
      rank() == root ? static_cast<std::int64_t>(data.bytes()) * (size() - 1) : 0;
  return enqueue(
      OperationKind::broadcast, sent,
      [=, this, &stream]() -> Steps {
        if (data.bytes() == 0) return {};
        return {[=, this, &queue = stream.queue()] {
          return handle_.issue("broadcast", [&](NcclApi& api, NcclApi::Comm comm) {
            return api.broadcast(data.data(), data.bytes(), root, comm, queue.native());
          });
        }};
      },
      stream);
}

device::Event NcclCommunicator::all_to_all(const Tensor& output, const Tensor& input,
                                           device::Stream& stream) {
  if (of_host(stream)) return mpi_->all_to_all(output, input, stream);
  checks::all_to_all(output, input, *this);
  const std::size_t block = input.bytes() / static_cast<std::size_t>(size());
  const auto at = [block](const Tensor& tensor, int r) {
    return bytes_of(tensor) + static_cast<std::size_t>(r) * block;
  };
  std::vector<NcclPart> parts;
  for_each_peer([&](int peer) {
    parts.push_back({at(output, peer), block, peer, false});
    parts.push_back({at(input, peer), block, peer, true});
  });
  const LocalCopy copy{at(output, rank()), at(input, rank()), block};
  return enqueue(
      OperationKind::all_to_all, static_cast<std::int64_t>(block) * (size() - 1),
      [=, this, &stream]() -> Steps {
        device::Queue& queue = stream.queue();
        return {copied({copy}, queue),
                [=, this, &queue] { return issue_parts(handle_, "all_to_all", parts, queue); }};
      },
      stream);
}

device::Event NcclCommunicator::exchange(std::vector<Message> messages, device::Stream& stream) {
  if (of_host(stream)) return mpi_->exchange(std::move(messages), stream);
  for (const Message& message : messages) {
    checks::dense(message.data);
    checks::peer(message.peer, *this);
  }
  const std::vector<LocalCopy> copies = take_own_messages(messages, rank());
  std::vector<NcclPart> parts;
  std::int64_t sent = 0;
  for (const Message& message : messages) {
    parts.push_back({bytes_of(message.data), message.data.bytes(), message.peer, message.send});
    if (message.send) sent += static_cast<std::int64_t>(message.data.bytes());
  }
  return enqueue(
      OperationKind::exchange, sent,
      [=, this, &stream]() -> Steps {
        device::Queue& queue = stream.queue();
        return {copied(copies, queue),
                [=, this, &queue] { return issue_parts(handle_, "exchange", parts, queue); }};
      },
      stream);
}

}  // namespace

std::unique_ptr<Communicator> NcclRuntime::make(std::unique_ptr<Communicator> mpi,
                                                const std::string& name, const std::string& key) {
  if (mpi->size() == 1) return mpi;
  return std::make_unique<NcclCommunicator>(*this, std::move(mpi), name, key);
}

std::size_t nccl_scratch_bytes(int size, std::size_t largest, const NcclOptions& options) {
  if (size == 1 || largest == 0) return 0;
  const auto slice = static_cast<std::int64_t>((largest + static_cast<std::size_t>(size) - 1) /
                                               static_cast<std::size_t>(size));
  const std::int64_t piece = piece_elements(size, slice, 1, options.scratch);
  return static_cast<std::size_t>(lane(piece, 1)) * static_cast<std::size_t>(size - 1);
}

}  // namespace trireme::comm
