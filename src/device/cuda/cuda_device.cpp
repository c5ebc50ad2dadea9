#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/device/cuda_error.hpp"

#include "span_log.hpp"
#include "tree.cuh"

#define TRIREME_CUDA_CALL(call) ::trireme::device::check_cuda(static_cast<int>(call), #call)

namespace trireme::device {
namespace {

class CudaFence final : public Fence {
 public:
  CudaFence(std::shared_ptr<EventPool> pool, cudaStream_t stream)
      : pool_(std::move(pool)), event_(pool_->take()) {
    const cudaError_t recorded = cudaEventRecord(event_, stream);
    if (recorded != cudaSuccess) pool_->give_back({&event_, 1});  // the destructor will not run
    TRIREME_CUDA_CALL(recorded);
  }
  ~CudaFence() override { pool_->give_back({&event_, 1}); }
  bool reached() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check_cuda(static_cast<int>(state), "cudaEventQuery");
    return true;
  }
  cudaEvent_t event() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

cudaMemoryType type_of(const void* memory) {
  cudaPointerAttributes attributes{};
  TRIREME_CUDA_CALL(cudaPointerGetAttributes(&attributes, memory));
  return attributes.type;
}
bool is_pageable(const void* memory) { return type_of(memory) == cudaMemoryTypeUnregistered; }
bool is_device(const void* memory) { return type_of(memory) == cudaMemoryTypeDevice; }

/// A stream, and copies and fences on it: Base is Queue, or CudaDevice for that of computation.
template <class Base>
class CudaQueue : public Base {
 public:
  /// `urgent`: a stream of the highest priority.
  CudaQueue(int device, std::shared_ptr<EventPool> events, std::shared_ptr<CudaSpanLog> log,
            bool urgent)
      : events_(std::move(events)), log_(std::move(log)), number_(log_->add_queue()) {
    TRIREME_CUDA_CALL(cudaSetDevice(device));
    // Not ordered with the default stream, on which libraries may do work of their own.
    int least = 0, most = 0;
    TRIREME_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &most));
    TRIREME_CUDA_CALL(
        cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? most : least));
    int reads = 0;
    TRIREME_CUDA_CALL(cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, device));
    reads_pageable_memory_ = reads != 0;
  }
  ~CudaQueue() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    const bool noted = log_->on() && open_.name == nullptr;
    if (noted) begin_span(copy_name(!is_device(to), !is_device(from)));
    TRIREME_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    if (noted) end_span();
    // CUDA itself lets go of pageable memory before it returns, but where the device reads such
    // memory directly: there it may be later.
    if (reads_pageable_memory_ && (is_pageable(to) || is_pageable(from))) CudaQueue::synchronize();
  }
  void reduce(DType type, Reduction reduction, std::span<const std::byte* const> contributions,
              std::byte* out, std::int64_t elements) override {
    check_cuda(queue_reduce(type, reduction == Reduction::max, contributions.data(),
                            static_cast<int>(contributions.size()), out, elements, stream_),
               "queue_reduce");
  }
  void convert(DType to_type, std::byte* to, const std::byte* from,
               std::int64_t elements) override {
    check_cuda(queue_convert(to_type, to, from, elements, stream_), "queue_convert");
  }
  void* native() override { return stream_; }
  std::shared_ptr<Fence> fence() override { return std::make_shared<CudaFence>(events_, stream_); }
  void follow(Fence& fence) override {
    if (const auto* ours = dynamic_cast<CudaFence*>(&fence)) {
      TRIREME_CUDA_CALL(cudaStreamWaitEvent(stream_, ours->event(), 0));
      return;
    }
    while (!fence.reached()) std::this_thread::yield();
  }
  void synchronize() override { TRIREME_CUDA_CALL(cudaStreamSynchronize(stream_)); }
  void begin_span(const char* name) override {
    if (log_->on()) open_ = log_->begin(name, number_, stream_);
  }
  void end_span() override {
    if (open_.name != nullptr) log_->end(std::exchange(open_, {}), stream_);
  }

 protected:
  std::shared_ptr<EventPool> events_;
  std::shared_ptr<CudaSpanLog> log_;
  cudaStream_t stream_ = nullptr;

 private:
  int number_;
  CudaSpanLog::Open open_;
  bool reads_pageable_memory_ = false;
};

class CudaTimeline final : public Timeline {
 public:
  explicit CudaTimeline(cudaStream_t stream) : stream_(stream) {}
  ~CudaTimeline() override { pool_.give_back(marks_); }
  void mark() override {
    marks_.push_back(pool_.take());
    TRIREME_CUDA_CALL(cudaEventRecord(marks_.back(), stream_));
  }
  std::vector<Clock::time_point> read() override {
    // From mark to mark: a time between two far ones is rounded to a microsecond and more.
    std::vector<Clock::time_point> times(marks_.size(), Clock::now());
    for (std::size_t i = marks_.size(); i-- > 1;) {
      times[i - 1] = time_of(marks_[i - 1], marks_[i], times[i]);
    }
    pool_.give_back(marks_);
    marks_.clear();
    return times;
  }

 private:
  EventPool pool_{cudaEventDefault};
  cudaStream_t stream_;
  std::vector<cudaEvent_t> marks_;  // since the last read
};

class CudaGraph final : public Graph {
 public:
  /// Of the capture that this ends.
  explicit CudaGraph(cudaStream_t stream) : stream_(stream) {
    cudaGraph_t captured = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    cudaError_t made = cudaSuccess;
    std::size_t nodes = 0;
    if (ended == cudaSuccess) made = cudaGraphGetNodes(captured, nullptr, &nodes);
    if (nodes > 0) made = cudaGraphInstantiate(&graph_, captured, 0);
    if (captured != nullptr) cudaGraphDestroy(captured);
    if (graph_ != nullptr) {  // takes its memory now, where it may be refused, not at its launch
      made = cudaGraphUpload(graph_, stream);
      if (made != cudaSuccess) cudaGraphExecDestroy(graph_);
    }
    if (ended != cudaSuccess || made != cudaSuccess) cudaGetLastError();  // forgets it
    TRIREME_CUDA_CALL(ended);
    TRIREME_CUDA_CALL(made);
  }
  ~CudaGraph() override {  // once what was launched has ended
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  void launch() override {
    if (graph_ != nullptr) TRIREME_CUDA_CALL(cudaGraphLaunch(graph_, stream_));
  }
  bool empty() const override { return graph_ == nullptr; }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

class Cuda final : public CudaQueue<CudaDevice> {
 public:
  explicit Cuda(int index)
      : CudaQueue(index, std::make_shared<EventPool>(cudaEventDisableTiming),
                  std::make_shared<CudaSpanLog>(), false),
        index_(index) {
    cudaDeviceProp properties{};
    TRIREME_CUDA_CALL(cudaGetDeviceProperties(&properties, index));
    name_ = fmt::format("cuda:{} ({})", index, properties.name);
  }

  std::string name() const override { return name_; }
  bool is_host() const override { return false; }
  std::string identity() const override { return cuda_device_identity(index_); }
  cudaStream_t stream() const override { return stream_; }

  void* allocate(std::size_t bytes) override {
    enter_thread();
    // Whole 16-byte words, of which kernels may read the last one where a tensor ends inside it.
    const std::size_t rounded = bytes + (256 - bytes % 256);
    void* memory = nullptr;
    if (!granted(cudaMalloc(&memory, rounded), "cudaMalloc")) return nullptr;
    // By the default stream, which any thread may use; done before the memory is returned.
    TRIREME_CUDA_CALL(cudaMemset(memory, 0, rounded));
    TRIREME_CUDA_CALL(cudaStreamSynchronize(cudaStreamLegacy));
    return memory;
  }
  void release(void* memory) noexcept override {              // waits for the device's work
    if (cudaFree(memory) != cudaSuccess) cudaGetLastError();  // no launch's fault
  }

  void* allocate_staging(std::size_t bytes) override {
    enter_thread();
    const std::size_t rounded = bytes + (64 - bytes % 64);
    void* memory = nullptr;
    if (!granted(cudaMallocHost(&memory, rounded), "cudaMallocHost")) return nullptr;
    std::memset(memory, 0, rounded);
    return memory;
  }
  void release_staging(void* memory) noexcept override {
    if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
  }

  std::unique_ptr<Queue> make_queue() override {
    return std::make_unique<CudaQueue<Queue>>(index_, events_, log_, true);
  }
  void enter_thread() override { TRIREME_CUDA_CALL(cudaSetDevice(index_)); }

  void synchronize() override {
    CudaQueue::synchronize();
    check();
  }
  std::unique_ptr<Timeline> make_timeline() override {
    return std::make_unique<CudaTimeline>(stream_);
  }
  void trace_queues() override { log_->start(); }
  std::vector<QueueSpan> read_queues() override { return log_->read(stream_); }
  bool captures() const override { return true; }
  void begin_capture() override {
    // This thread's mistakes alone: others ask events and copy on their own streams meanwhile.
    TRIREME_CUDA_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }
  std::unique_ptr<Graph> end_capture() override { return std::make_unique<CudaGraph>(stream_); }
  std::int64_t free_bytes() const override {
    std::size_t free = 0, all = 0;
    TRIREME_CUDA_CALL(cudaMemGetInfo(&free, &all));
    return static_cast<std::int64_t>(free);
  }

 private:
  static bool granted(cudaError_t result, const char* call) {
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // forgets it
      return false;
    }
    check_cuda(static_cast<int>(result), call);
    return true;
  }

  int index_;
  std::string name_;
};

/// "13.0" of 13000.
std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t own = nvtxDomainCreateA("trireme");
  return own;
}

}  // namespace

void check_cuda(int code, const char* call) {
  const auto error = static_cast<cudaError_t>(code);
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report this one's
  throw Error("{}: {}: {}", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string cuda_device_identity(int index) {
  cudaDeviceProp properties{};
  check_cuda(static_cast<int>(cudaGetDeviceProperties(&properties, index)),
             "cudaGetDeviceProperties");
  std::string name = "GPU-";
  for (const char byte : properties.uuid.bytes) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

std::string cuda_description() {
  int runtime = 0, driver = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  std::string text = "CUDA " + version(runtime);
  if (driver == 0) return text + ", no driver";
  text += ", driver for " + version(driver);
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    cudaGetLastError();
    return text + ", no device: " + cudaGetErrorString(counted);
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check_cuda(static_cast<int>(cudaGetDeviceProperties(&properties, i)),
               "cudaGetDeviceProperties");
    text += fmt::format("; cuda:{} {}, {:.1f} GiB, capability {}.{}", i, properties.name,
                        static_cast<double>(properties.totalGlobalMem) / (1 << 30),
                        properties.major, properties.minor);
  }
  return text;
}

Range::Range(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

Range::~Range() { nvtxDomainRangePop(domain()); }

std::unique_ptr<Device> make_cuda_device(int index) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count) {
    throw Error("device cuda:{}: this process sees {} such devices ({}); use --device cpu", index,
                count, cuda_description());
  }
  return std::make_unique<Cuda>(index);
}

}  // namespace trireme::device
