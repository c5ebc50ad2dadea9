#include "trireme/plan/trace.hpp"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <sys/mman.h>

#include "trireme/ops/forwarding.hpp"

#include "recording.hpp"

namespace trireme::plan {

namespace {

using Kind = Instruction::Kind;

/// The end of an operation on a stream.
class End final : public device::Fence {
 public:
  explicit End(int operation) : operation_(operation) {}
  bool reached() override { return true; }
  int operation() const { return operation_; }

 private:
  int operation_;
};

/// Reserved addresses that read as zero; pages exist only where somebody writes.
class Addresses {
 public:
  ~Addresses() {
    for (const auto& [memory, bytes] : taken_) ::munmap(memory, bytes);
  }
  void* take(std::size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    taken_[memory] = bytes;
    return memory;
  }
  void give_back(void* memory) {
    const auto found = taken_.find(memory);
    if (found == taken_.end()) return;
    ::munmap(memory, found->second);
    taken_.erase(found);
  }

 private:
  std::unordered_map<void*, std::size_t> taken_;
};

/// A stream's queue: what it does beside communication.
class PlannedQueue final : public device::Queue {
 public:
  PlannedQueue(Recording& recording, int stream) : recording_(recording), stream_(stream) {}
  void copy(void*, const void*, std::size_t bytes) override { work(2 * bytes); }
  void reduce(DType type, device::Reduction, std::span<const std::byte* const> contributions,
              std::byte*, std::int64_t elements) override {
    work((contributions.size() + 1) * static_cast<std::size_t>(elements) * size_of(type));
  }
  void convert(DType type, std::byte*, const std::byte*, std::int64_t elements) override {
    // Between fp32 and that type, or from it.
    const std::size_t narrow = type == DType::f32 ? size_of(DType::bf16) : size_of(type);
    work(static_cast<std::size_t>(elements) * (sizeof(float) + narrow));
  }
  std::shared_ptr<device::Fence> fence() override {
    const int last = recording_.last_of(stream_);
    return last < 0 ? nullptr : std::make_shared<End>(last);
  }
  void follow(device::Fence&) override {}  // a stream's operations come in their order anyway
  void synchronize() override {}
  int stream() const { return stream_; }

 private:
  void work(std::size_t bytes) {
    recording_.last_of(stream_) =
        recording_.start({.local = static_cast<std::int64_t>(bytes), .stream = stream_});
  }
  Recording& recording_;
  int stream_;
};

class PlannedDevice final : public device::Device {
 public:
  PlannedDevice(Recording& recording, bool host) : recording_(recording), host_(host) {}
  std::string name() const override { return "planned"; }
  bool is_host() const override { return host_; }
  void* allocate(std::size_t bytes) override { return addresses_.take(bytes); }
  void release(void* memory) noexcept override { addresses_.give_back(memory); }
  void* allocate_staging(std::size_t bytes) override { return allocate(bytes); }
  void release_staging(void* memory) noexcept override { release(memory); }
  std::unique_ptr<device::Queue> make_queue() override {
    return std::make_unique<PlannedQueue>(recording_, recording_.make_stream());
  }
  void copy(void*, const void*, std::size_t bytes) override {
    recording_.compute({.type = DType::u8, .bytes = static_cast<std::int64_t>(2 * bytes)});
  }
  void reduce(DType, device::Reduction, std::span<const std::byte* const>, std::byte*,
              std::int64_t) override {
    throw Error("plan: a device reduces on its streams");
  }
  void convert(DType, std::byte*, const std::byte*, std::int64_t) override {
    throw Error("plan: a device converts on its streams");
  }
  std::shared_ptr<device::Fence> fence() override { return nullptr; }
  void follow(device::Fence& fence) override {
    recording_.wait(dynamic_cast<End&>(fence).operation());
  }
  void synchronize() override { recording_.wait_for_device(); }

 private:
  Recording& recording_;
  bool host_;
  Addresses addresses_;
};

/// An operation of a channel: on a stream of the device queued at once, and waited for by its
/// fence; on a stream of the host waited for where it is tested.
class Planned final : public device::Operation {
 public:
  Planned(Recording& recording, int operation, bool queued)
      : recording_(recording), operation_(operation), queued_(queued) {}
  void start() override {}
  bool test() override {
    if (!queued_) recording_.wait(operation_);
    return true;
  }
  bool queued() const override { return queued_; }
  std::shared_ptr<device::Fence> end() override {
    return queued_ ? std::make_shared<End>(operation_) : nullptr;
  }

 private:
  Recording& recording_;
  int operation_;
  bool queued_;
};

/// Computes nothing.
class PlannedOps final : public ops::ForwardingOps<PlannedOps> {
 public:
  explicit PlannedOps(Recording& recording) : recording_(recording) {}

  template <class... Parameters, class... Arguments>
  void forward(const char* name, void (Ops::* /*operation*/)(Parameters...),
               const Arguments&... arguments) {
    recording_.compute(work_of(name, arguments...));
  }

 private:
  Recording& recording_;
};

}  // namespace

std::string to_string(const Channel& channel) {
  if (!channel.direction) return std::string(comm::name_of(channel.kind));
  return *channel.direction == comm::Direction::activations ? "activations" : "gradients";
}

std::map<std::string, std::int64_t> Trace::sent() const {
  std::map<std::string, std::int64_t> sums;
  const auto add = [&](const std::vector<StreamOperation>& list, std::int64_t times) {
    for (const StreamOperation& each : list) {
      if (each.planned.sent == 0 || each.planned.agreement) continue;
      sums[to_string(each.channel)] += times * each.planned.sent;
    }
  };
  std::vector<std::int64_t> times(sections.size());
  for (const Instruction& each : instructions) {
    if (each.kind == Kind::section) ++times[static_cast<std::size_t>(each.index)];
  }
  add(operations, 1);
  for (std::size_t i = 0; i < sections.size(); ++i) add(sections[i].operations, times[i]);
  return sums;
}

Trace trace_step(const model::Transformer& model, const parallel::ReplicaOptions& options,
                 const comm::GridShape& shape, int rank, bool host, bool documents) {
  return trace_step(model, options, shape, rank, host,
                    parallel::blank_batches(options.stage.micro_batches, options.stage.sequences,
                                            model.config().sequence, documents));
}

Trace trace_step(const model::Transformer& model, parallel::ReplicaOptions options,
                 const comm::GridShape& shape, int rank, bool host,
                 const std::vector<parallel::HostMicrobatch>& batches, bool sections) {
  if (options.alone || options.make_method || options.stage.served) {
    throw Error(
        "plan: step time is predicted for data_parallel.method = allreduce alone; use that, or "
        "leave --machine out");
  }
  if (options.stage.offload) {
    throw Error(
        "plan: step time is not predicted for zero.offload; use zero.offload = none, or leave "
        "--machine out");
  }
  Recording recording;
  PlannedDevice device(recording, host);
  device::MemoryLedger ledger(device);
  Recorder recorder;
  const auto make_group = [&](comm::GroupKind kind, std::optional<comm::Direction> direction) {
    const std::vector<int> members = comm::members(shape, kind, rank);
    const auto own = std::find(members.begin(), members.end(), rank) - members.begin();
    return comm::make_planned_communicator(
        static_cast<int>(own), static_cast<int>(members.size()),
        [&recording, channel = Channel{kind, direction}, &device](
            const comm::PlannedOperation& operation, device::Stream& stream) {
          const bool queued = &stream.device() == &device;
          StreamOperation started{.planned = operation, .channel = channel, .blocking = !queued};
          started.stream = queued ? dynamic_cast<PlannedQueue&>(stream.queue()).stream() : -1;
          return std::make_unique<Planned>(recording, recording.start(started), queued);
        });
  };
  comm::Grid grid(shape, rank, ledger, make_group);
  options.stage.planned = true;
  options.watchdog = nullptr;
  options.trace = options.graphs = false;
  if (sections) {
    options.compute_action = [&recording](const parallel::ActionKind& kind,
                                          const std::function<void()>& compute) {
      recording.action(kind, compute);
    };
  }
  options.make_ops = [&](device::MemoryLedger&, int, bool) {
    return std::make_unique<PlannedOps>(recording);
  };
  Trace trace;
  std::map<device::Use, std::int64_t> memory;
  {
    parallel::Replica replica(model, options, grid, recorder, ledger);
    recording.record(true);
    replica.backward(batches);
    replica.update(1e-3, 0, 1);
    replica.wait();
    recording.record(false);
    for (std::size_t use = 0; use < static_cast<std::size_t>(device::Use::count); ++use) {
      const auto each = static_cast<device::Use>(use);
      memory[each] = ledger.peak(each);
    }
    trace = recording.take();
  }
  trace.overlap = options.overlap;
  trace.memory = std::move(memory);
  return trace;
}

}  // namespace trireme::plan
