// A fake CUDA driver without a device that accepts any code: enough for cuDNN, which builds kernels
// for a described device before loading them. One test loads it as libcuda.so.1.
namespace {
constexpr int success = 0, no_device = 100;
char something = 0;
}  // namespace

// NOLINTBEGIN(readability-identifier-naming): names of the driver's
extern "C" {

int cuInit(unsigned /*flags*/) { return no_device; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return no_device;
}
int cuGetErrorName(int /*error*/, const char** text) {
  *text = "of a fake driver";
  return success;
}
int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }
int cuLibraryLoadData(void** library, const void* /*code*/) {
  *library = &something;
  return success;
}
int cuLibraryGetKernel(void** kernel, void* /*library*/, const char* /*name*/) {
  *kernel = &something;
  return success;
}
int cuLibraryUnload(void* /*library*/) { return success; }

// Looked up with those above, and not called without a device.
#define TRIREME_WITHOUT_DEVICE(name) \
  int name() { return no_device; }
TRIREME_WITHOUT_DEVICE(cuCtxGetCurrent)
TRIREME_WITHOUT_DEVICE(cuCtxGetLimit)
TRIREME_WITHOUT_DEVICE(cuCtxPopCurrent)
TRIREME_WITHOUT_DEVICE(cuCtxPushCurrent)
TRIREME_WITHOUT_DEVICE(cuDeviceGet)
TRIREME_WITHOUT_DEVICE(cuKernelGetAttribute)
TRIREME_WITHOUT_DEVICE(cuKernelSetAttribute)
TRIREME_WITHOUT_DEVICE(cuLaunchCooperativeKernel)
TRIREME_WITHOUT_DEVICE(cuLaunchKernel)
TRIREME_WITHOUT_DEVICE(cuLaunchKernelEx)
TRIREME_WITHOUT_DEVICE(cuLibraryLoadFromFile)
TRIREME_WITHOUT_DEVICE(cuLinkAddData)
TRIREME_WITHOUT_DEVICE(cuLinkComplete)
TRIREME_WITHOUT_DEVICE(cuLinkCreate)
TRIREME_WITHOUT_DEVICE(cuLinkDestroy)
TRIREME_WITHOUT_DEVICE(cuOccupancyMaxPotentialClusterSize)
TRIREME_WITHOUT_DEVICE(cuStreamGetCtx)

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
