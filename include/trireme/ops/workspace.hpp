// Bytes of the backends' workspace, for predicting memory before a run. A backend holds as much as
// its most demanding call so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::ops {

/// Attention of B sequences, Tq queries, Tk keys, H heads on G key/value heads of size D.
struct AttentionShape {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, groups = 0, size = 0;
};

/// A product [m, k]·[k, n].
struct ProductShape {
  std::int64_t m, n, k;
};

// CPU
/// The larger of independent attention and its backward, on `threads` threads of a backend that is
/// `reproducible` or not.
std::size_t cpu_attention_workspace(std::span<const AttentionShape> calls, int threads,
                                    bool reproducible = false);
/// The same in bf16.
std::size_t cpu_narrow_attention_workspace(std::span<const AttentionShape> calls, int threads,
                                           bool reproducible = false);
/// Independent products of bf16 factors, `copies` of each shape, the first factor transposed or
/// not, into bf16 or (`wide`) fp32, with rounded biases. Single products of fp32 need none.
std::size_t cpu_product_workspace(std::span<const ProductShape> products, bool transposed,
                                  bool wide, int threads, std::int64_t copies = 1);
/// The sum of two or more such products [m, inner[i]]·[inner[i], n].
std::size_t cpu_sum_workspace(std::int64_t m, std::int64_t n, std::span<const std::int64_t> inner,
                              int threads);
/// Sums [m, n] of `terms` terms of fp32 products in reproducible mode; group_rows: MatmulOptions.
std::size_t cpu_float_sum_workspace(std::int64_t m, std::int64_t n, std::int64_t group_rows,
                                    std::int64_t terms, int threads);
/// Sums of `count` products with transposed left factors, leftᵀ [m, k]·[k, n], of `terms` terms
/// each: Ops::independent_sums in bf16. `terms` is at least 2. `shared`: all have the same right
/// factors.
struct ProductSumShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t count = 0;
  bool operator==(const ProductSumShape&) const = default;
};
std::size_t cpu_left_sum_workspace(std::span<const ProductSumShape> sums, std::int64_t terms,
                                   bool shared, int threads);
/// column_sum, or a norm's backward for weights, of [rows, columns] into `outputs` sums; of `calls`
/// independent ones, the largest of which has `rows`, on `threads` threads.
std::size_t cpu_row_sum_workspace(std::int64_t rows, std::int64_t columns, int outputs,
                                  int calls = 1, int threads = 1);

// CUDA: of the libraries. Our own kernels' workspace, some MB for sums of columns, is not counted.
/// cuBLASLt's, of fixed size.
inline constexpr std::size_t cuda_product_workspace = std::size_t{32} << 20;
/// Whether libraries have a fused kernel for plain causal attention of this shape without dropout
/// in bf16 or fp16. They may refuse it all the same.
inline bool cuda_attention_fuses(const AttentionShape& shape) {
  return shape.batch > 0 && shape.queries == shape.keys && shape.queries > 1 && shape.groups > 0 &&
         shape.heads % shape.groups == 0 && shape.size % 8 == 0 && shape.size <= 128;
}
/// Upper bound for cuDNN's backward of such a call on compute capabilities 8.0 to 10.0 (cuDNN 9.19;
/// tests/cuda/cudnn_plans_test.cpp compares): Σ dout·out per query and fp32 gradients of queries,
/// or with `deterministic` the gradients of all scores [B, H, Tq, Tk]; and gradients of keys and
/// values for each query head that shares a group.
inline std::size_t cuda_attention_workspace(const AttentionShape& shape, bool deterministic) {
  constexpr std::int64_t narrow = 2, wide = 4, alignment = 2048;
  constexpr std::int64_t block = 128, few = 16;  // tokens that kernels round up to
  const auto up = [](std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; };
  const std::int64_t rows = shape.batch * shape.heads * shape.queries;
  const std::int64_t scores =
      shape.batch * shape.heads * up(shape.queries, block) * up(shape.keys, block) * narrow;
  const std::int64_t gradients =
      2 * shape.batch * shape.heads * up(shape.queries, few) * shape.size * wide;
  const std::int64_t shared = shape.heads == shape.groups ? 0 : 2 * rows * shape.size * narrow;
  return static_cast<std::size_t>(rows * wide + (deterministic ? scores : gradients) + shared +
                                  alignment);
}

}  // namespace trireme::ops
