#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/comm/nccl.hpp"
#include "trireme/device/device.hpp"

#include "common.hpp"
#include "nccl_handle.hpp"
#include "nccl_operation.hpp"

namespace trireme::comm {
namespace {

bool failed(NcclApi::Result result) {
  return result != NcclApi::Result::success && result != NcclApi::Result::in_progress;
}

/// A step: all parts as one group. Those without bytes are left out, by both sides alike.
bool issue_parts(NcclHandle& handle, const char* operation, const std::vector<Part>& parts,
                 device::Queue& queue) {
  const auto empty = [](const Part& part) { return part.bytes == 0; };
  if (std::all_of(parts.begin(), parts.end(), empty)) return true;
  void* const native = queue.native();
  return handle.issue_group(operation, [&](NcclApi& api, NcclApi::Comm comm) {
    for (const Part& part : parts) {
      if (part.bytes == 0) continue;
      const NcclApi::Result result =
          part.send ? api.send(part.data, part.bytes, part.peer, comm, native)
                    : api.receive(part.data, part.bytes, part.peer, comm, native);
      if (failed(result)) return result;
    }
    return NcclApi::Result::success;
  });
}

using Steps = NcclOperation::Steps;

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

class NcclRegistration final : public Registration {
 public:
  NcclRegistration(NcclRuntime& runtime, NcclHandle& handle, void* data, std::size_t bytes)
      : handle_(handle) {
    if (bytes == 0) return;
    works_ = runtime.api().registers();
    if (!works_) return;
    refusal_ = handle.register_memory(data, bytes, registered_);
    registers_ = works_ = refusal_.empty();
  }
  NcclRegistration(const NcclRegistration&) = delete;
  NcclRegistration& operator=(const NcclRegistration&) = delete;
  ~NcclRegistration() override {
    if (registers_) handle_.deregister_memory(registered_);
  }
  bool works() const { return works_; }
  const std::string& refusal() const { return refusal_; }

 private:
  NcclHandle& handle_;
  void* registered_ = nullptr;  // NCCL may have nothing to note
  bool registers_ = false, works_ = true;
  std::string refusal_;
};

class NcclCommunicator final : public BesideMpi {
 public:
  NcclCommunicator(NcclRuntime& runtime, std::unique_ptr<Communicator> mpi, const std::string& name,
                   const std::string& key, const NcclOrigin& origin = {}, bool beside = false)
      : BesideMpi(std::move(mpi)),
        runtime_(runtime),
        handle_(runtime, *mpi_, name, key, origin),
        beside_(beside) {}

  std::unique_ptr<Registration> register_memory(const Tensor& memory) override;

 protected:
  Communicator& carrier(const device::Stream& stream) override {
    if (stream.device().is_host()) return *mpi_;
    TRIREME_ASSERT(&stream.device() == &runtime_.ledger().device(), "a stream of {}",
                   stream.device().name());
    return *this;
  }
  device::Event start_reduction(SliceReduction job, device::Stream& stream) override;
  device::Event start_gather(const Tensor& output, const Tensor& input,
                             const std::vector<std::int64_t>& begins,
                             device::Stream& stream) override;
  device::Event start_broadcast(const Tensor& data, int root, device::Stream& stream) override;
  device::Event start_exchange(OperationKind kind, std::vector<Message> messages,
                               device::Stream& stream) override;

 private:
  device::Event enqueue(OperationKind kind, std::int64_t sent, std::function<Steps()> plan,
                        device::Stream& stream) {
    return stream.enqueue(std::make_unique<NcclOperation>(handle_, runtime_, stream, counter_, kind,
                                                          sent, std::move(plan), beside_));
  }
  bool by_library(const SliceReduction& job) const {
    const DType type = job.type();
    return runtime_.options().library_sums && job.reduction == Reduction::sum &&
           (type == DType::f32 || type == DType::f64 || type == DType::i64);
  }
  Steps own_sum(const SliceReduction& job, device::Queue& queue);
  Steps library_sum(const SliceReduction& job, device::Queue& queue);
  Steps library_scatter(const SliceReduction& job, device::Queue& queue);
  std::byte* scratch(std::size_t bytes);

  NcclRuntime& runtime_;
  device::Buffer scratch_;
  NcclHandle handle_;  // ends before the scratch memory, on which no work is left then
  bool beside_;
  bool registers_ = false;
  std::unique_ptr<NcclRegistration> scratch_registration_;
};

/// NCCL wants registered memory in an operation on all ranks or on none, so all agree.
std::unique_ptr<Registration> NcclCommunicator::register_memory(const Tensor& memory) {
  std::unique_ptr<NcclRegistration> own;
  try {
    own = std::make_unique<NcclRegistration>(runtime_, handle_, memory.data(), memory.bytes());
  } catch (...) {  // the others wait for this rank's vote
    mpi_->all_agree(false);
    throw;
  }
  if (mpi_->all_agree(own->works())) {
    registers_ = true;
    return own;
  }
  if (runtime_.api().registers()) {
    runtime_.note_refusal("nccl: no memory is registered: " +
                          (own->works() ? "another rank cannot" : own->refusal()));
  }
  return nullptr;
}

std::byte* NcclCommunicator::scratch(std::size_t bytes) {
  if (scratch_.bytes() < bytes) {
    scratch_registration_.reset();
    scratch_ = device::Buffer();  // never both at once; waits for what uses it
    scratch_ = device::Buffer(runtime_.ledger(), device::Use::communication, bytes);
    // Messages alone come here, of which each side's memory may be registered or not.
    if (registers_) {
      scratch_registration_ =
          std::make_unique<NcclRegistration>(runtime_, handle_, scratch_.data(), bytes);
    }
  }
  return scratch_.data();
}

/// Piece by piece: everyone's contribution to this rank's slice comes to scratch memory and is
/// added there; results go out together at the end, when no contribution is needed any more.
Steps NcclCommunicator::own_sum(const SliceReduction& job, device::Queue& queue) {
  const std::int64_t longest = job.longest();
  if (longest == 0) return {};
  const std::int64_t piece =
      piece_elements(size(), longest, job.element(), runtime_.options().scratch);
  const std::int64_t stride = lane(piece, job.element());
  std::byte* const lanes = scratch(static_cast<std::size_t>(stride * (size() - 1)));
  const auto lane_of = [=, own = rank()](int r) { return lanes + (r < own ? r : r - 1) * stride; };
  const char* const name = name_of(job.kind()).data();

  Steps steps;
  for (std::int64_t i = 0; i * piece < longest; ++i) {
    const std::int64_t own = job.stretch(rank(), i, piece).count;
    steps.emplace_back([=, this, &queue] {
      std::vector<Part> parts;
      for_each_peer([&](int peer) {
        const Stretch theirs = job.stretch(peer, i, piece);
        parts.push_back({lane_of(peer), job.bytes(own), peer, false});
        parts.push_back({job.at(theirs.begin), job.bytes(theirs.count), peer, true});
      });
      return issue_parts(handle_, name, parts, queue);
    });
    if (own == 0) continue;
    steps.emplace_back([=, this, &queue] {
      std::vector<const std::byte*> contributions;
      for (int r = 0; r < size(); ++r) {
        contributions.push_back(r == rank() ? job.at(job.stretch(r, i, piece).begin) : lane_of(r));
      }
      queue.reduce(job.type(), job.reduction, contributions, job.output_at(i * piece), own);
      return true;
    });
  }
  if (!job.gather) return steps;
  steps.emplace_back([=, this, &queue] {
    const auto parts = gather_parts(*this, job.at(0), job.output_at(0), job.begins, job.element());
    return issue_parts(handle_, name, parts, queue);
  });
  return steps;
}

device::Event NcclCommunicator::start_reduction(SliceReduction job, device::Stream& stream) {
  const OperationKind kind = job.kind();
  const std::int64_t sent = job.sent(rank());
  return enqueue(
      kind, sent,
      [=, this, &queue = stream.queue(), job = std::move(job)]() -> Steps {
        if (!by_library(job)) return own_sum(job, queue);
        if (job.data.elements() == 0) return {};
        return job.gather ? library_sum(job, queue) : library_scatter(job, queue);
      },
      stream);
}

Steps NcclCommunicator::library_sum(const SliceReduction& job, device::Queue& queue) {
  return {[=, this, &queue] {
    return handle_.issue("all_reduce", [&](NcclApi& api, NcclApi::Comm comm) {
      return api.all_reduce(job.data.data(), static_cast<std::size_t>(job.data.elements()),
                            job.type(), comm, queue.native());
    });
  }};
}

Steps NcclCommunicator::library_scatter(const SliceReduction& job, device::Queue& queue) {
  const auto elements = [job](int r) { return static_cast<std::size_t>(job.count(r)); };
  bool even = true;
  for (int r = 0; r < size(); ++r) even = even && elements(r) == elements(0);
  if (even) {
    return {[=, this, &queue] {
      return handle_.issue("reduce_scatter", [&](NcclApi& api, NcclApi::Comm comm) {
        return api.reduce_scatter(job.data.data(), job.output.data(), elements(0), job.type(), comm,
                                  queue.native());
      });
    }};
  }
  return {[=, this, &queue] {
    return handle_.issue_group("reduce_scatter", [&](NcclApi& api, NcclApi::Comm comm) {
      for (int r = 0; r < size(); ++r) {
        if (elements(r) == 0) continue;
        const NcclApi::Result result =
            api.reduce(job.at(job.begins[r]), r == rank() ? job.output.data() : nullptr,
                       elements(r), job.type(), r, comm, queue.native());
        if (failed(result)) return result;
      }
      return NcclApi::Result::success;
    });
  }};
}

device::Event NcclCommunicator::start_gather(const Tensor& output, const Tensor& input,
                                             const std::vector<std::int64_t>& begins,
                                             device::Stream& stream) {
  const auto element = static_cast<std::int64_t>(size_of(output.type()));
  bool even = true;
  for (int r = 0; r < size(); ++r) even = even && begins[r + 1] - begins[r] == begins[1];
  const auto bytes = static_cast<std::int64_t>(input.bytes());
  const LocalCopy copy{bytes_of(output) + begins[rank()] * element, bytes_of(input), input.bytes()};
  return enqueue(
      OperationKind::all_gather, bytes * (size() - 1),
      [=, this, &queue = stream.queue()]() -> Steps {
        if (even && bytes == 0) return {};
        if (!even) {
          return {copied({copy}, queue), [=, this, &queue] {
                    const auto parts =
                        gather_parts(*this, bytes_of(output), bytes_of(input), begins, element);
                    return issue_parts(handle_, "all_gather", parts, queue);
                  }};
        }
        return {[=, this, &queue] {
          return handle_.issue("all_gather", [&](NcclApi& api, NcclApi::Comm comm) {
            return api.all_gather(input.data(), output.data(), input.bytes(), comm, queue.native());
          });
        }};
      },
      stream);
}

device::Event NcclCommunicator::start_broadcast(const Tensor& data, int root,
                                                device::Stream& stream) {
  // Counted as if the root sent to everyone: what each rank really sends is up to NCCL.
  const std::int64_t sent =
      rank() == root ? static_cast<std::int64_t>(data.bytes()) * (size() - 1) : 0;
  return enqueue(
      OperationKind::broadcast, sent,
      [=, this, &queue = stream.queue()]() -> Steps {
        if (data.bytes() == 0) return {};
        return {[=, this, &queue] {
          return handle_.issue("broadcast", [&](NcclApi& api, NcclApi::Comm comm) {
            return api.broadcast(data.data(), data.bytes(), root, comm, queue.native());
          });
        }};
      },
      stream);
}

device::Event NcclCommunicator::start_exchange(OperationKind kind, std::vector<Message> messages,
                                               device::Stream& stream) {
  // Alone, NCCL passes the rank's messages to itself.
  std::vector<LocalCopy> copies;
  if (size() > 1) copies = take_own_messages(messages, rank());
  const std::vector<Part> parts = parts_of(messages);
  std::int64_t sent = 0;
  for (const Part& part : parts) sent += part.send ? static_cast<std::int64_t>(part.bytes) : 0;
  return enqueue(
      kind, sent,
      [=, this, &queue = stream.queue(), copies = std::move(copies)]() -> Steps {
        return {copied(copies, queue), [=, this, &queue] {
                  return issue_parts(handle_, name_of(kind).data(), parts, queue);
                }};
      },
      stream);
}

}  // namespace

std::unique_ptr<Communicator> NcclRuntime::make(std::unique_ptr<Communicator> mpi,
                                                const std::string& name, const std::string& key) {
  if (mpi->size() == 1 && !options_.alone) return mpi;
  return std::make_unique<NcclCommunicator>(*this, std::move(mpi), name, key);
}

std::unique_ptr<Communicator> NcclRuntime::make(std::unique_ptr<Communicator> mpi,
                                                const std::string& name, const std::string& key,
                                                const NcclSplit& split) {
  std::unique_ptr<NcclHandle>& parent = parents_[key];
  if (parent == nullptr) {
    parent = std::make_unique<NcclHandle>(*this, split.world, "parent of " + key, key);
  }
  if (mpi->size() == 1 && !options_.alone) {
    NcclApi::Comm none = nullptr;
    parent->split(name, -1, 0, none);
    return mpi;
  }
  return std::make_unique<NcclCommunicator>(*this, std::move(mpi), name, key,
                                            NcclOrigin{parent.get(), split.color});
}

std::unique_ptr<Communicator> NcclRuntime::make_pair(std::unique_ptr<Communicator> mpi,
                                                     const std::string& name,
                                                     const std::string& key, bool sends) {
  auto pair =
      std::make_unique<NcclCommunicator>(*this, std::move(mpi), name, key, NcclOrigin{}, true);
  const device::Buffer first(ledger_, device::Use::communication, 1);
  device::Stream stream(ledger_.device());
  pair->exchange({{first.view(DType::u8, {1}), 1 - pair->rank(), sends}}, stream).wait();
  device::wait_for(ledger_.device());
  pair->reset_traffic();
  return pair;
}

std::size_t nccl_scratch_bytes(int size, std::size_t largest, const NcclOptions& options) {
  if (size == 1 || largest == 0) return 0;
  const auto slice = static_cast<std::int64_t>((largest + static_cast<std::size_t>(size) - 1) /
                                               static_cast<std::size_t>(size));
  const std::int64_t piece = piece_elements(size, slice, 1, options.scratch);
  return static_cast<std::size_t>(lane(piece, 1)) * static_cast<std::size_t>(size - 1);
}

}  // namespace trireme::comm
