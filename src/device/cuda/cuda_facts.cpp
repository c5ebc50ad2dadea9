// Results of CUDA's calls as errors, what devices there are, and ranges for profilers.
#include <string>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/device/cuda_error.hpp"

namespace trireme::device {
namespace {

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

}  // namespace trireme::device
