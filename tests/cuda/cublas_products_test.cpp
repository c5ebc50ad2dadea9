// How products by cuBLASLt choose, refuse and keep their algorithms: against a stand-in for the
// library and for the few calls of the CUDA runtime, so no GPU is needed.
#include <functional>
#include <map>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/memory.hpp"

#include "../../src/ops/cuda/libraries.hpp"

namespace {

/// What the library and the device do, and what they were asked for.
struct StandIn {
  int offered = 1;                         // algorithms 1 to this, the library's first is 1
  std::map<int, cublasStatus_t> rejected;  // by algorithm, of the call itself
  std::map<int, float> milliseconds;       // by algorithm
  float epilogue = 0, kernel = 0;  // milliseconds that an epilogue adds, and our kernel for it
  float addition = 0;              // of row sums to earlier ones, after the library's epilogue
  bool capturing = false;
  std::vector<int> called;  // algorithms
  int kernels = 0;          // of ours
  float elapsed = 0;        // of the last product and what follows it
} stand_in;

cublasStatus_t make(void** place) {
  *place = new char;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t end(void* made) {
  delete static_cast<char*>(made);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return make(reinterpret_cast<void**>(handle));
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return end(handle); }
const char* cublasLtGetStatusName(cublasStatus_t) { return "a status"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "in words"; }
size_t cublasLtGetVersion() { return 130000; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t,
                                        cudaDataType_t) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new cublasLtEpilogue_t(CUBLASLT_EPILOGUE_DEFAULT));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  delete reinterpret_cast<cublasLtEpilogue_t*>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) {
    *reinterpret_cast<cublasLtEpilogue_t*>(made) = *static_cast<const cublasLtEpilogue_t*>(value);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return make(reinterpret_cast<void**>(made));
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  return end(made);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType, uint64_t,
                                          uint64_t, int64_t) {
  return make(reinterpret_cast<void**>(made));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) { return end(made); }
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = std::min(most, stand_in.offered);
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    results[i].algo.data[0] = static_cast<uint64_t>(i) + 1;
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t,
                                                    void* value, size_t, size_t*) {
  *static_cast<int*>(value) = static_cast<int>(algorithm->data[0]);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*,
                              const void*, cublasLtMatrixLayout_t, const void*,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t) {
  const int id = static_cast<int>(algorithm->data[0]);
  stand_in.called.push_back(id);
  const auto epilogue = *reinterpret_cast<cublasLtEpilogue_t*>(description);
  const bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
  stand_in.elapsed = stand_in.milliseconds[id] + (plain ? 0 : stand_in.epilogue);
  const auto found = stand_in.rejected.find(id);
  return found == stand_in.rejected.end() ? CUBLAS_STATUS_SUCCESS : found->second;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 9;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  make(reinterpret_cast<void**>(event));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  end(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t, cudaEvent_t) {
  *time = stand_in.elapsed;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = stand_in.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

}  // extern "C"

namespace trireme::ops {

// Our kernels
namespace {
void run_kernel() {
  ++stand_in.kernels;
  stand_in.elapsed += stand_in.kernel;
}
}  // namespace
void gelu(const Matrix&, const Matrix&, CUstream_st*) { run_kernel(); }
void gelu_backward(const Matrix&, const Matrix&, const Matrix&, CUstream_st*) { run_kernel(); }
void row_sum(float*, const Matrix&, CUstream_st*) { run_kernel(); }
void add(const Matrix&, const Matrix&, const Matrix&, CUstream_st*) {
  stand_in.elapsed += stand_in.addition;
}
void column_sum(float*, const Matrix&, float*, CUstream_st*) { run_kernel(); }
std::size_t column_sum_workspace(std::int64_t, std::int64_t, int) { return 64; }

namespace {

class CublasProducts : public testing::Test {
 protected:
  CublasProducts() { stand_in = {}; }
  std::unique_ptr<Products> make(const CudaOpsOptions& options = {}) {
    return make_library_products(ledger_, device::host_device(), nullptr, options);
  }
  Product product() {
    Product p;
    p.c = {memory_, Element::bf16, 8, 8, 8};
    p.a = p.b = p.c;
    return p;
  }

  device::MemoryLedger ledger_;
  alignas(16) std::uint16_t memory_[64] = {};
};

TEST_F(CublasProducts, ARejectedAlgorithmIsNotTriedAgain) {
  const auto products = make();
  stand_in.rejected[1] = CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_FALSE(products->multiply(product()));
  stand_in.rejected.clear();
  EXPECT_FALSE(products->multiply(product()));
  EXPECT_EQ(stand_in.called.size(), 1U);
}

// A graph that cannot be had costs a launch for each kernel; one that holds the slow kernel, or a
// plan that is given up, would cost every step.
TEST_F(CublasProducts, ARejectionInACaptureFailsTheCaptureAndIsForgotten) {
  const auto products = make();
  stand_in.capturing = true;
  stand_in.rejected[1] = CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_THROW(products->multiply(product()), Error);
  stand_in = {};
  EXPECT_TRUE(products->multiply(product()));
  EXPECT_EQ(stand_in.called, std::vector{1});
}

TEST_F(CublasProducts, OtherErrorsEndTheRun) {
  const auto products = make();
  stand_in.rejected[1] = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_THROW(products->multiply(product()), Error);
}

TEST_F(CublasProducts, TheFastestAlgorithmThatIsNotRejectedIsUsed) {
  stand_in.offered = 4;
  stand_in.milliseconds = {{1, 3.0F}, {2, 1.0F}, {3, 2.0F}, {4, 4.0F}};
  stand_in.rejected[2] = CUBLAS_STATUS_NOT_SUPPORTED;
  const auto products = make({.time_algorithms = true});
  EXPECT_TRUE(products->multiply(product()));
  EXPECT_EQ(stand_in.called.back(), 3);
  ASSERT_EQ(products->describe_algorithms().size(), 1U);
  EXPECT_EQ(products->describe_algorithms().front().source, "timed");
}

// cuBLASLt's epilogues with GELU are slower than a pass of their own for some shapes.
TEST_F(CublasProducts, ASlowEpilogueIsLeftToAKernel) {
  enum class Kind : std::uint8_t { gelu, slope, row_sum };
  for (const Kind kind : {Kind::gelu, Kind::slope, Kind::row_sum}) {
    for (const bool slow : {false, true}) {
      stand_in = {};
      stand_in.milliseconds = {{1, 1.0F}};
      stand_in.kernel = 0.5F;
      stand_in.addition = 0.3F;
      stand_in.epilogue = (slow ? 0.6F : 0.4F) - (kind == Kind::row_sum ? stand_in.addition : 0);
      const auto products = make({.time_algorithms = true});
      alignas(16) float sums[8] = {}, result[64] = {};
      Product p = product();
      if (kind == Kind::gelu) p.before_gelu = p.c;
      if (kind == Kind::slope) p.gelu_input = p.c;
      if (kind == Kind::row_sum) {
        p.c = {result, Element::f32, 8, 8, 8};
        p.row_sum = sums;
        p.transpose_a = true;
      }
      EXPECT_EQ(products->multiply(p), !slow) << "the product and its epilogue";
      EXPECT_GT(stand_in.kernels, 0) << "timed";
      const std::size_t calls = stand_in.called.size();
      EXPECT_TRUE(products->multiply(without_epilogue(p)));
      EXPECT_EQ(stand_in.called.size(), calls + 1) << "its plan exists";
      // Other ranks do the same without timing.
      const auto others = make({.time_algorithms = true});
      others->use_algorithms(products->algorithms());
      EXPECT_EQ(others->multiply(p), !slow);
      int apart = 0;
      for (const Choice& each : products->describe_algorithms()) {
        apart += each.algorithm == "a plain product and a kernel of its own" ? 1 : 0;
      }
      EXPECT_EQ(apart, slow ? 1 : 0);
    }
  }
}

TEST_F(CublasProducts, AgreedAlgorithmsAreUsedOrTheRunEnds) {
  stand_in.offered = 2;
  stand_in.milliseconds = {{1, 2.0F}, {2, 1.0F}};
  const auto first = make({.time_algorithms = true}), second = make({.time_algorithms = true});
  EXPECT_TRUE(first->multiply(product()));
  second->use_algorithms(first->algorithms());
  stand_in.called.clear();
  EXPECT_TRUE(second->multiply(product()));
  EXPECT_EQ(stand_in.called, std::vector{2});
  // Another one here alone would be other bits than on other ranks.
  stand_in.rejected[2] = CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_THROW(second->multiply(product()), Error);
}

}  // namespace
}  // namespace trireme::ops
