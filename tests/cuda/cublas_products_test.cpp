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
  bool capturing = false;
  std::vector<int> called;  // algorithms
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
  return make(reinterpret_cast<void**>(made));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) { return end(made); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
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
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm, void*,
                              size_t, cudaStream_t) {
  const int id = static_cast<int>(algorithm->data[0]);
  stand_in.called.push_back(id);
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
  *time = stand_in.milliseconds[stand_in.called.back()];
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = stand_in.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

}  // extern "C"

namespace trireme::ops {
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
