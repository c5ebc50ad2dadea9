#include "cudnn_library.hpp"

#include <cstdlib>

#include <cudnn_frontend.h>
#include <dlfcn.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // read by the frontend
}

namespace trireme::ops {

const std::string& load_cudnn() {
  static const std::string why_not = [] {
    // The frontend would look for the CUDA runtime of other versions first.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", TRIREME_CUDART, 0);
    cudnn_frontend::cudnn_dlhandle = dlopen(TRIREME_CUDNN, RTLD_NOW | RTLD_GLOBAL);
    if (cudnn_frontend::cudnn_dlhandle != nullptr) return std::string();
    const char* reason = dlerror();
    return std::string(reason == nullptr ? TRIREME_CUDNN " cannot be loaded" : reason);
  }();
  return why_not;
}

}  // namespace trireme::ops
