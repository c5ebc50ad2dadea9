// cuBLASLt's functions, looked up at the first call. If linked, the library would take 200 MB of
// memory and a quarter of a second in every process, on CPUs too.
#include <cublasLt.h>
#include <dlfcn.h>

#include "trireme/core/error.hpp"

namespace trireme::ops {
namespace {

void* library() {
  static void* const found = [] {
    void* handle = dlopen(TRIREME_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      throw Error("{}: cannot be loaded: {}; put its folder into LD_LIBRARY_PATH", TRIREME_CUBLASLT,
                  why == nullptr ? "no reason given" : why);
    }
    return handle;
  }();
  return found;
}

template <class Function>
Function* find(const char* name) {
  void* symbol = dlsym(library(), name);
  if (symbol == nullptr) {
    throw Error("{}: has no {}; install the version that Trireme was built with", TRIREME_CUBLASLT,
                name);
  }
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace
}  // namespace trireme::ops

// Defines a function of the header as a call of the library's.
#define TRIREME_FORWARD(result, name, parameters, arguments)                   \
  result name parameters {                                                     \
    static auto* const function = trireme::ops::find<decltype(::name)>(#name); \
    return function arguments;                                                 \
  }

extern "C" {

TRIREME_FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
TRIREME_FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
TRIREME_FORWARD(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
TRIREME_FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
TRIREME_FORWARD(size_t, cublasLtGetVersion, (), ())
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmul,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                 const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                 cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                 cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                 const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                 cudaStream_t stream),
                (handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                 algorithm, workspace, workspace_bytes, stream))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                 cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                 cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                 cublasLtMatmulPreference_t preference, int most,
                 cublasLtMatmulHeuristicResult_t* results, int* count),
                (handle, product, a_layout, b_layout, c_layout, d_layout, preference, most, results,
                 count))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
                (const cublasLtMatmulAlgo_t* algorithm,
                 cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                 size_t* written),
                (algorithm, attribute, value, bytes, written))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
                (cublasLtMatmulDesc_t * product, cublasComputeType_t compute, cudaDataType_t scale),
                (product, compute, scale))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t product),
                (product))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
                (cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                 const void* value, size_t bytes),
                (product, attribute, value, bytes))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate,
                (cublasLtMatmulPreference_t * preference), (preference))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy,
                (cublasLtMatmulPreference_t preference), (preference))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                (cublasLtMatmulPreference_t preference,
                 cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
                (preference, attribute, value, bytes))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
                (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows,
                 uint64_t columns, int64_t stride),
                (layout, type, rows, columns, stride))
TRIREME_FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout),
                (layout))

}  // extern "C"
