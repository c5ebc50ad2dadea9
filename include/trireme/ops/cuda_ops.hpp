// The CUDA backend: cuBLASLt for matrix products, cuDNN's fused attention for plain causal
// sequences, its own kernels for the rest. It computes in fp32, bf16 and fp16 and queues all work
// on the device's compute stream. No result depends on timing: there are no atomic additions. Not
// thread-safe: one object per computing thread.
//
// An id outside its embedding table ends the kernel with a printed line, and the next
// Device::synchronize throws.
//
// The bits of its algorithms may differ: how ranks agree on the choice among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/device/device.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::ops {

/// How products of one kind are computed, as text for a run's record.
struct Choice {
  std::int64_t rows = 0, columns = 0, depth = 0;  // c [rows, columns] = op(a) [rows, depth]·op(b)
  std::string factors, result;                    // types: "bf16", "fp32"
  std::string form;                               // "NN", "NT", "TN": a and b, T: transposed
  bool accumulates = false;
  std::string epilogue;   // "none", "bias", …
  std::string algorithm;  // the library's number and workspace, or that it has none
  std::string source;     // "heuristic", "timed"
};

/// How plain causal attention in bf16 or fp16 of one kind is computed, as text for a run's record.
struct AttentionChoice {
  std::int64_t batch = 0, tokens = 0, heads = 0, groups = 0, size = 0;
  std::string type;
  bool backward = false;
  std::string kernel;          // the library's name of it; empty: our own kernel
  std::int64_t workspace = 0;  // bytes, of the library's
  std::string refusal;         // why the library refuses it
};

/// Second base of such an Ops: `dynamic_cast<AlgorithmChoices*>(&ops)` is null for other ones.
class AlgorithmChoices : public Interface {
 public:
  /// The choices for all shapes so far, as bytes for ranks of the same build.
  virtual std::vector<std::byte> choices() const = 0;
  /// Uses `choices` from now on and times no further algorithms. Throws Error for choices of
  /// another library version or kind of device.
  virtual void use_choices(std::span<const std::byte> choices) = 0;
  /// The same as text, in the same order.
  virtual std::vector<Choice> describe_choices() const = 0;
  /// Of this process's calls so far, ordered by shape.
  virtual std::vector<AttentionChoice> describe_attention() const { return {}; }
};

/// Parts of libraries that a run does without, each by its name in the environment variable
/// TRIREME_CUDA_WITHOUT ("cudnn,gelu"), so that a part that fails does not end it. All ranks of a
/// job must do without the same.
struct CudaWithout {
  bool cudnn = false;     // attention by cuDNN
  bool cublaslt = false;  // products by cuBLASLt: plain_product computes them
  bool bias = false, gelu = false, row_sum = false;  // cuBLASLt's epilogues that have them
  bool timing = false;                               // CudaOpsOptions::time_algorithms
  bool split = false;  // products of a large uneven extent in two parts, see split_uneven
};

/// Of a list of the names, separated by commas. Throws Error for another name.
CudaWithout read_cuda_without(std::string_view list);
/// The variable's value, read once; empty where it is not set.
const std::string& cuda_without();

struct CudaOpsOptions {
  device::MemoryLedger* ledger = nullptr;  // of the device; absent: workspace is not recorded
  /// Products do not split their inner dimension, and sums beside them have a fixed order.
  bool reproducible = false;
  /// fp32 products on tensor cores, which keep 10 bits of the factors' mantissas.
  bool tf32 = false;
  /// Times several algorithms at the first product of a shape.
  bool time_algorithms = false;
  /// cuDNN's attention for calls that it accepts.
  bool fused_attention = true;
  /// Otherwise cuDNN's backward adds in any order, which is faster and needs less workspace: the
  /// one result that depends on timing. Reproducible mode is always deterministic.
  bool deterministic_attention = true;
};

/// `device` comes from make_cuda_device and outlives the result, which is also AlgorithmChoices.
/// It does without what TRIREME_CUDA_WITHOUT names. Throws Error if Trireme was built without CUDA,
/// or that list has an unknown name.
std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const CudaOpsOptions& options = {});

/// Versions of the libraries that the backend uses, and what it does without, as text; empty
/// without CUDA.
std::string cuda_libraries();

}  // namespace trireme::ops
