// Matrix products and attention by libraries, and what is decided about them without one.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/ops/cuda_ops.hpp"

#include "kernels.hpp"

namespace trireme::device {
class Device;
class MemoryLedger;
}  // namespace trireme::device

namespace trireme::ops {

/// c = op(a)·op(b), row-major; pointers and matrices that are absent are null.
struct Product {
  Matrix c, a, b;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  const void* bias = nullptr;  // of a's type, as the next two
  Matrix before_gelu, gelu_input;
  float* row_sum = nullptr;  // [m] written: Σ_k op(a)
  std::int64_t depth() const { return transpose_a ? a.rows : a.columns; }
};

/// What a library applies to the sums of a product, in one pass.
enum class Epilogue : std::uint8_t { none, bias, gelu, bias_gelu, gelu_slope, row_sum };

/// A column-major matrix as BLAS describes it.
struct BlasMatrix {
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool transposed = false;
  auto operator<=>(const BlasMatrix&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// All that the choice of an algorithm depends on. Row-major c = a·b is column-major cᵀ = bᵀ·aᵀ, so
/// `left` is our b and `right` our a. Alignments are powers of two of at most 16 bytes.
struct ProductKey {
  BlasMatrix left, right, result;
  std::int64_t aux_leading = 0;
  Element factors = Element::f32, results = Element::f32;
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
  std::uint8_t left_alignment = 16, right_alignment = 16, result_alignment = 16;
  auto operator<=>(const ProductKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// Whether the library can do it in one pass, as far as its rules are known: one epilogue that is
/// not left out, an aux matrix in 16-byte steps, row sums only beside fp32 results.
bool can_fuse(const Product& product, const CudaWithout& without = {});
/// The other way, for factors and results of one type: a product without GELU, its slope or row
/// sums (and with the bias, into before_gelu), and then a kernel of ours. `workspace` as of
/// column_sum.
Product without_epilogue(const Product& product);
void apply_epilogue(const Product& product, float* workspace, CUstream_st* stream);
std::size_t epilogue_workspace(const Product& product);  // bytes
/// The library's fast kernels for 16-bit factors need steps of 8 along rows in memory. A plain
/// product of aligned rows with a large extent that is none (GPT-2's vocabulary of 50,257), in two:
/// the rest, then the whole steps, which accumulate on it where the inner extent is split. None for
/// other products.
std::optional<std::array<Product, 2>> split_uneven(const Product& product);
ProductKey key_of(const Product& product);

/// An algorithm as the library's opaque 64 bytes; `refused` if it has none, `apart` if a plain
/// product and apply_epilogue are faster.
struct Algorithm {
  std::uint64_t words[8] = {};
  std::uint64_t workspace = 0;
  std::int64_t id = -1;  // of its family; -1: unknown
  bool refused = false;
  bool timed = false;  // the fastest of several, else the library's first
  bool apart = false;
};
struct KeyedAlgorithm {
  ProductKey key;
  Algorithm algorithm;
};
Choice describe(const KeyedAlgorithm& each);
/// Bytes for ranks of the same build; `version`: of library and device together.
std::vector<std::byte> pack_algorithms(std::uint64_t version,
                                       const std::vector<KeyedAlgorithm>& algorithms);
/// Throws Error for bytes of another version or of another kind.
std::vector<KeyedAlgorithm> unpack_algorithms(std::uint64_t version,
                                              std::span<const std::byte> bytes);

class Products : public Interface {
 public:
  /// Queues the product; false, and nothing queued, if the library has no algorithm for it or is
  /// slower than without_epilogue and apply_epilogue.
  virtual bool multiply(const Product& product) = 0;
  /// See AlgorithmChoices.
  virtual std::vector<std::byte> algorithms() const = 0;
  virtual void use_algorithms(std::span<const std::byte> bytes) = 0;
  virtual std::vector<Choice> describe_algorithms() const = 0;
};

/// Products by cuBLASLt on `stream`; its workspace, of fixed size, is entered in the ledger.
std::unique_ptr<Products> make_library_products(device::MemoryLedger& ledger,
                                                device::Device& device, CUstream_st* stream,
                                                const CudaOpsOptions& options);
std::string product_library();  // its name and version

/// Whether libraries have a fused kernel for the call: bf16 or fp16, plain causal sequences of more
/// than one token, no dropout, whole groups of heads, aligned heads of at most 128 elements.
bool can_fuse(const Attention& call);
bool can_fuse(const Attention& call, const AttentionGradients& gradients);

class FusedAttention : public Interface {
 public:
  /// Queues the call; false, and nothing queued, if the library refuses it.
  virtual bool forward(const Attention& call) = 0;
  virtual bool backward(const Attention& call, const AttentionGradients& gradients) = 0;
  /// See AlgorithmChoices::describe_attention.
  virtual std::vector<AttentionChoice> describe() const = 0;
};

/// cuDNN's on `stream`, its workspace entered in the ledger. It refuses every call if cuDNN does
/// not start; null without cuDNN in the build. `deterministic`: backward is bitwise repeatable.
std::unique_ptr<FusedAttention> make_fused_attention(device::MemoryLedger& ledger,
                                                     device::Device& device, CUstream_st* stream,
                                                     bool deterministic);
std::string attention_library();  // its name and version, or that there is none

}  // namespace trireme::ops
