// Matrix products by cuBLASLt: descriptors, the choice of an algorithm, and plans that cache both.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "trireme/core/error.hpp"
#include "trireme/device/cuda_error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/ops/workspace.hpp"

#include "libraries.hpp"

namespace trireme::ops {
namespace {

/// The same for every product, as the choice of an algorithm depends on it.
constexpr std::size_t workspace_bytes = cuda_product_workspace;
static_assert(sizeof(Algorithm::words) == sizeof(cublasLtMatmulAlgo_t));

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("{}: {}: {}", call, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}
#define TRIREME_CUBLAS_CALL(call) check(call, #call)

/// Whether the library rejects a product without queuing it: another way must compute it.
bool refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}
#define TRIREME_CUDA_CALL(call) device::check_cuda(static_cast<int>(call), #call)

/// Owns one of the library's descriptors.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != nullptr) destroy(handle_);
  }
  Handle* place() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

cudaDataType_t data_type(Element type) {
  return type == Element::f32 ? CUDA_R_32F : type == Element::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// In Epilogue's order.
constexpr cublasLtEpilogue_t epilogues[] = {
    CUBLASLT_EPILOGUE_DEFAULT,       CUBLASLT_EPILOGUE_BIAS,  CUBLASLT_EPILOGUE_GELU_AUX,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB};

/// Descriptors and algorithm of one kind of product.
struct Plan {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> left, right, result;
  Algorithm algorithm;
  bool chosen = false, agreed = false;  // here; with other ranks

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TRIREME_CUBLAS_CALL(
        cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof(value)));
  }
};

void make_layout(cublasLtMatrixLayout_t* layout, Element type, const BlasMatrix& x) {
  TRIREME_CUBLAS_CALL(cublasLtMatrixLayoutCreate(layout, data_type(type),
                                                 static_cast<std::uint64_t>(x.rows),
                                                 static_cast<std::uint64_t>(x.columns), x.leading));
}

void describe(Plan& plan, const ProductKey& key, bool tf32) {
  const cublasComputeType_t compute =
      key.factors == Element::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  TRIREME_CUBLAS_CALL(cublasLtMatmulDescCreate(plan.product.place(), compute, CUDA_R_32F));
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, key.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, key.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[static_cast<std::size_t>(key.epilogue)]);
  if (key.epilogue == Epilogue::row_sum) {
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
  } else if (key.epilogue == Epilogue::bias || key.epilogue == Epilogue::bias_gelu) {
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(key.factors));
  }
  if (key.aux_leading > 0) {
    plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.aux_leading);  // its type is the result's
  }
  make_layout(plan.left.place(), key.factors, key.left);
  make_layout(plan.right.place(), key.factors, key.right);
  make_layout(plan.result.place(), key.results, key.result);
}

/// Sets the pointers of a descriptor; the choice depends on their alignment.
void set_pointers(Plan& plan, const Product& p) {
  if (p.row_sum != nullptr) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.row_sum);
  if (p.bias != nullptr) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const Matrix& aux = p.before_gelu.data != nullptr ? p.before_gelu : p.gelu_input;
  if (aux.data != nullptr) plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data);
}

using Candidates = std::vector<Algorithm>;

Candidates candidates(cublasLtHandle_t handle, const Plan& plan, const ProductKey& key,
                      bool reproducible, int most) {
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  TRIREME_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(preference.place()));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    TRIREME_CUBLAS_CALL(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // Split sums are added in fp32 and in order, or not used at all: in-place addition has no order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{reproducible ? CUBLASLT_REDUCTION_SCHEME_NONE
                                 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{key.left_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{key.right_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{key.result_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{key.result_alignment});
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, plan.product.get(), plan.left.get(), plan.right.get(), plan.result.get(),
      plan.result.get(), preference.get(), most, results.data(), &found);
  Candidates all;
  if (refuses(status)) return all;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) continue;
    Algorithm algorithm;
    std::copy_n(result.algo.data, std::size(algorithm.words), algorithm.words);
    algorithm.workspace = result.workspaceSize;
    int id = -1;
    std::size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id,
                                             &written) == CUBLAS_STATUS_SUCCESS) {
      algorithm.id = id;
    }
    all.push_back(algorithm);
  }
  return all;
}

class CublasProducts final : public Products {
 public:
  CublasProducts(device::MemoryLedger& ledger, device::Device& device, cudaStream_t stream,
                 const CudaOpsOptions& options)
      : device_(device),
        stream_(stream),
        options_(options),
        workspace_(ledger, device::Use::workspace, workspace_bytes, device) {
    TRIREME_CUBLAS_CALL(cublasLtCreate(handle_.place()));
    int index = 0, major = 0, minor = 0;
    TRIREME_CUDA_CALL(cudaGetDevice(&index));
    TRIREME_CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    TRIREME_CUDA_CALL(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    version_ = cublasLtGetVersion() * 1000 + static_cast<std::size_t>(10 * major + minor);
  }

  bool multiply(const Product& product) override {
    Plan& plan = plan_of(product);
    if (plan.algorithm.refused || plan.algorithm.apart) return false;
    set_pointers(plan, product);
    const cublasStatus_t status = queue(plan, product, plan.algorithm, product.c.data);
    // The heuristic may accept what the call rejects. While work is captured it may reject what it
    // would accept otherwise: then the capture fails, and the plan stays.
    if (refuses(status) && !plan.agreed && !capturing()) {
      plan.algorithm = Algorithm{.refused = true};
      return false;
    }
    check(status, "cublasLtMatmul");
    return true;
  }

  std::vector<std::byte> algorithms() const override {
    std::vector<KeyedAlgorithm> all;
    for (const auto& [key, plan] : plans_) all.push_back({key, plan.algorithm});
    return pack_algorithms(version_, all);
  }

  std::vector<Choice> describe_algorithms() const override {
    std::vector<Choice> all;
    for (const auto& [key, plan] : plans_) all.push_back(ops::describe({key, plan.algorithm}));
    return all;
  }

  void use_algorithms(std::span<const std::byte> bytes) override {
    for (const KeyedAlgorithm& each : unpack_algorithms(version_, bytes)) {
      Plan& plan = plans_[each.key];
      if (plan.product.get() == nullptr) describe(plan, each.key, options_.tf32);
      plan.algorithm = each.algorithm;
      plan.chosen = plan.agreed = true;
    }
    options_.time_algorithms = false;
  }

 private:
  bool capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    TRIREME_CUDA_CALL(cudaStreamIsCapturing(stream_, &status));
    return status != cudaStreamCaptureStatusNone;
  }
  Plan& plan_of(const Product& product) {
    const ProductKey key = key_of(product);
    Plan& plan = plans_[key];
    if (plan.chosen) return plan;
    describe(plan, key, options_.tf32);
    set_pointers(plan, product);
    constexpr int timed = 8;
    const Candidates all = candidates(handle_.get(), plan, key, options_.reproducible,
                                      options_.time_algorithms ? timed : 1);
    plan.algorithm.refused = all.empty();
    if (!all.empty()) {
      plan.algorithm = options_.time_algorithms ? fastest(plan, product, all) : all[0];
    }
    plan.chosen = true;
    return plan;
  }

  cublasStatus_t queue(const Plan& plan, const Product& product, const Algorithm& algorithm,
                       void* result) {
    const float one = 1, beta = product.accumulate ? 1.0F : 0.0F;
    cublasLtMatmulAlgo_t chosen{};
    std::copy_n(algorithm.words, std::size(algorithm.words), chosen.data);
    return cublasLtMatmul(handle_.get(), plan.product.get(), &one, product.b.data, plan.left.get(),
                          product.a.data, plan.right.get(), &beta, result, plan.result.get(),
                          result, plan.result.get(), &chosen, workspace_.data(), workspace_bytes,
                          stream_);
  }

  /// Memory until the end of a measurement; null where there is none.
  auto temporary(std::size_t bytes) {
    const auto release = [this](void* memory) { device_.release(memory); };
    return std::unique_ptr<void, decltype(release)>(
        device_.allocate(std::max<std::size_t>(bytes, 1)), release);
  }
  static std::size_t bytes_of_rows(const Matrix& x) {
    return static_cast<std::size_t>((x.stride * (x.rows - 1) + x.columns) * bytes_of(x.type));
  }

  /// The best of three runs in milliseconds; none if one of them is refused.
  template <class Run>
  std::optional<float> time(const Run& run) {
    Owned<cudaEvent_t, destroy_event> begin, end;
    TRIREME_CUDA_CALL(cudaEventCreate(begin.place()));
    TRIREME_CUDA_CALL(cudaEventCreate(end.place()));
    float best = 0;
    for (int i = 0; i < 4; ++i) {  // the first one loads the kernel
      TRIREME_CUDA_CALL(cudaEventRecord(begin.get(), stream_));
      const cublasStatus_t status = run();
      if (refuses(status)) return {};
      check(status, "cublasLtMatmul");
      TRIREME_CUDA_CALL(cudaEventRecord(end.get(), stream_));
      TRIREME_CUDA_CALL(cudaEventSynchronize(end.get()));
      float own = 0;
      TRIREME_CUDA_CALL(cudaEventElapsedTime(&own, begin.get(), end.get()));
      if (i > 0) best = i == 1 ? own : std::min(best, own);
    }
    return best;
  }

  /// The fastest way, timed on temporary memory; without such memory the library's first algorithm;
  /// refused if the library rejects all of them.
  Algorithm fastest(const Plan& plan, const Product& product, const Candidates& all) {
    const bool epilogue = product.before_gelu.data != nullptr ||
                          product.gelu_input.data != nullptr || product.row_sum != nullptr;
    if (all.size() == 1 && !epilogue) return all[0];
    const auto result = temporary(bytes_of_rows(product.c));
    if (result == nullptr) return all[0];
    std::optional<float> best;
    Algorithm chosen{.refused = true};
    for (const Algorithm& each : all) {
      const auto own = time([&] {
        const cublasStatus_t status = queue(plan, product, each, result.get());
        if (product.row_sum != nullptr && status == CUBLAS_STATUS_SUCCESS) {
          // As after each such product: the library overwrites row sums.
          const Matrix sums{product.row_sum, Element::f32, 1, product.c.rows, product.c.rows};
          add(sums, sums, sums, stream_);
        }
        return status;
      });
      if (!own || (best && *own >= *best)) continue;
      best = own;
      chosen = each;
      chosen.timed = true;
    }
    const auto apart = epilogue ? time_apart(product) : std::nullopt;
    if (apart && (!best || *apart < *best)) chosen = {.timed = true, .apart = true};
    return chosen;
  }

  /// The time of a plain product and our kernel; none if the library rejects the plain product.
  std::optional<float> time_apart(Product product) {
    Product plain = without_epilogue(product);
    Plan& plan = plan_of(plain);
    if (plan.algorithm.refused) return {};
    const auto result = temporary(bytes_of_rows(product.c)),
               sums = temporary(bytes_of_rows(plain.c));
    const auto workspace = temporary(epilogue_workspace(product));
    const auto row_sums = temporary(static_cast<std::size_t>(product.c.rows) * sizeof(float));
    if (!result || !sums || !workspace || !row_sums) return {};
    product.c.data = result.get();
    if (product.before_gelu.data != nullptr) product.before_gelu.data = sums.get();
    if (product.row_sum != nullptr) product.row_sum = static_cast<float*>(row_sums.get());
    plain = without_epilogue(product);
    set_pointers(plan, plain);
    return time([&] {
      const cublasStatus_t status = queue(plan, plain, plan.algorithm, plain.c.data);
      if (status == CUBLAS_STATUS_SUCCESS) {
        apply_epilogue(product, static_cast<float*>(workspace.get()), stream_);
      }
      return status;
    });
  }

  static cublasStatus_t destroy_event(cudaEvent_t event) {
    cudaEventDestroy(event);
    return CUBLAS_STATUS_SUCCESS;
  }

  device::Device& device_;
  cudaStream_t stream_;
  CudaOpsOptions options_;
  std::size_t version_ = 0;  // of library and device
  device::Buffer workspace_;
  Owned<cublasLtHandle_t, cublasLtDestroy> handle_;
  std::map<ProductKey, Plan> plans_;
};

}  // namespace

std::unique_ptr<Products> make_library_products(device::MemoryLedger& ledger,
                                                device::Device& device, CUstream_st* stream,
                                                const CudaOpsOptions& options) {
  return std::make_unique<CublasProducts>(ledger, device, stream, options);
}

std::string product_library() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace trireme::ops
