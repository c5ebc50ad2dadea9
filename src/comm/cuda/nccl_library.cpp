// NCCL itself. The only file that sees its header; non-blocking communicators need NCCL 2.14.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "trireme/comm/nccl.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 14, 0), "NCCL 2.14 or newer is needed");
static_assert(sizeof(ncclUniqueId) == sizeof(NcclApi::UniqueId));
static_assert(static_cast<int>(NcclApi::Result::success) == ncclSuccess);
static_assert(static_cast<int>(NcclApi::Result::invalid_usage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclApi::Result::remote_error) == ncclRemoteError);
static_assert(static_cast<int>(NcclApi::Result::in_progress) == ncclInProgress);

using Result = NcclApi::Result;
Result result(ncclResult_t code) { return static_cast<Result>(code); }
ncclComm_t native(NcclApi::Comm comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t stream(void* queue) { return static_cast<cudaStream_t>(queue); }

ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::i64:
      return ncclInt64;
    case DType::bf16:
    case DType::f16:
    case DType::i32:
    case DType::u16:
    case DType::u8:
      break;
  }
  throw Error("nccl: no sum of {} is asked of it", name_of(type));
}

// Templates, since headers of NCCL before 2.19 lack what they name.
template <class Config>
void share_resources(Config& config) {
  if constexpr (requires { config.splitShare; }) config.splitShare = 1;
}
template <class NativeComm, class Config>
ncclResult_t split_native(NativeComm parent, int color, int key, NativeComm* made, Config config) {
  if constexpr (requires { ncclCommSplit(parent, color, key, made, &config); }) {
    return ncclCommSplit(parent, color, key, made, &config);
  } else {
    return ncclInvalidUsage;
  }
}

template <class NativeComm>
ncclResult_t register_native(NativeComm comm, void* data, std::size_t bytes, void** registered) {
  if constexpr (requires { ncclCommRegister(comm, data, bytes, registered); }) {
    return ncclCommRegister(comm, data, bytes, registered);
  } else {
    return ncclInvalidUsage;
  }
}
template <class NativeComm>
ncclResult_t deregister_native(NativeComm comm, void* registered) {
  if constexpr (requires { ncclCommDeregister(comm, registered); }) {
    return ncclCommDeregister(comm, registered);
  } else {
    return ncclInvalidUsage;
  }
}

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  share_resources(config);  // the parent's counts at a split
  return config;
}

bool has_version(int least) {  // of the header and of the library that was loaded
  int number = 0;
  return NCCL_VERSION_CODE >= least && ncclGetVersion(&number) == ncclSuccess && number >= least;
}

class Library final : public NcclApi {
 public:
  std::string version() override {
    int number = 0;
    if (ncclGetVersion(&number) != ncclSuccess) return "unknown";
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }
  /// By an environment variable alone, from 2.26 on. One that is set already stays. With a driver
  /// before CUDA 12.3 NCCL would do operations one after another, not only start them in order.
  bool orders_launches() override {
    constexpr const char* variable = "NCCL_LAUNCH_ORDER_IMPLICIT";
    int number = 0, driver = 0;
    if (ncclGetVersion(&number) != ncclSuccess || number < NCCL_VERSION(2, 26, 0)) return false;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver < 12030) return false;
    setenv(variable, "1", 0);
    return std::string_view(std::getenv(variable)) == "1";
  }
  bool splits() override { return has_version(NCCL_VERSION(2, 18, 0)); }
  std::string describe(Result code, Comm comm) override {
    std::string text = ncclGetErrorString(static_cast<ncclResult_t>(static_cast<int>(code)));
    const char* last = ncclGetLastError(native(comm));
    if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
    for (char& c : text) c = c == '\n' ? ' ' : c;
    return text;
  }

  Result get_unique_id(UniqueId& id) override {
    ncclUniqueId own{};
    const ncclResult_t code = ncclGetUniqueId(&own);
    std::memcpy(id.data(), &own, sizeof own);
    return result(code);
  }
  Result init(Comm& comm, int size, const UniqueId& id, int rank) override {
    ncclUniqueId own{};
    std::memcpy(&own, id.data(), sizeof own);
    ncclConfig_t config = configuration();
    ncclComm_t made = nullptr;
    const ncclResult_t code = ncclCommInitRankConfig(&made, size, own, rank, &config);
    comm = reinterpret_cast<Comm>(made);
    return result(code);
  }
  Result split(Comm parent, int color, int key, Comm& comm) override {
    // NCCL sets `comm` from a thread of its own.
    return result(split_native(native(parent), color, key, reinterpret_cast<ncclComm_t*>(&comm),
                               configuration()));
  }
  bool registers() override { return has_version(NCCL_VERSION(2, 19, 0)); }
  Result register_memory(Comm comm, void* data, std::size_t bytes, void*& registered) override {
    return result(register_native(native(comm), data, bytes, &registered));
  }
  Result deregister_memory(Comm comm, void* registered) override {
    return result(deregister_native(native(comm), registered));
  }
  Result async_error(Comm comm, Result& state) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t code = ncclCommGetAsyncError(native(comm), &found);
    state = result(found);
    return result(code);
  }
  Result finalize(Comm comm) override { return result(ncclCommFinalize(native(comm))); }
  Result destroy(Comm comm) override { return result(ncclCommDestroy(native(comm))); }
  Result abort(Comm comm) override { return result(ncclCommAbort(native(comm))); }

  Result group_start() override { return result(ncclGroupStart()); }
  Result group_end() override { return result(ncclGroupEnd()); }
  Result send(const void* from, std::size_t bytes, int peer, Comm comm, void* queue) override {
    return result(ncclSend(from, bytes, ncclInt8, peer, native(comm), stream(queue)));
  }
  Result receive(void* to, std::size_t bytes, int peer, Comm comm, void* queue) override {
    return result(ncclRecv(to, bytes, ncclInt8, peer, native(comm), stream(queue)));
  }
  Result all_gather(const void* from, void* to, std::size_t bytes_of_one, Comm comm,
                    void* queue) override {
    return result(ncclAllGather(from, to, bytes_of_one, ncclInt8, native(comm), stream(queue)));
  }
  Result broadcast(void* data, std::size_t bytes, int root, Comm comm, void* queue) override {
    return result(ncclBroadcast(data, data, bytes, ncclInt8, root, native(comm), stream(queue)));
  }
  Result all_reduce(void* data, std::size_t count, DType type, Comm comm, void* queue) override {
    return result(
        ncclAllReduce(data, data, count, type_of(type), ncclSum, native(comm), stream(queue)));
  }
  Result reduce_scatter(const void* from, void* to, std::size_t count_of_one, DType type, Comm comm,
                        void* queue) override {
    return result(ncclReduceScatter(from, to, count_of_one, type_of(type), ncclSum, native(comm),
                                    stream(queue)));
  }
  Result reduce(const void* from, void* to, std::size_t count, DType type, int root, Comm comm,
                void* queue) override {
    return result(
        ncclReduce(from, to, count, type_of(type), ncclSum, root, native(comm), stream(queue)));
  }
};

}  // namespace

bool nccl_built_in() { return true; }

NcclApi& nccl_library() {
  static Library library;  // without state
  return library;
}

}  // namespace trireme::comm
