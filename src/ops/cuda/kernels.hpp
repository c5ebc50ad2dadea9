// The kernels as plain functions: each queues its work on `stream` and returns. Pointers are to
// device memory, of the types that ops.hpp gives. Empty work launches nothing. No header included
// here includes fmt, which nvcc cannot compile. At the end: how kernels divide their work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/ops/attention_blocks.hpp"

struct CUstream_st;

namespace trireme::ops {

enum class Element : std::uint8_t { f32, bf16, f16 };
constexpr std::int64_t bytes_of(Element type) { return type == Element::f32 ? 4 : 2; }

/// [rows, columns], rows `stride` elements apart.
struct Matrix {
  void* data = nullptr;
  Element type = Element::f32;
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool contiguous() const { return rows <= 1 || stride == columns; }
};

/// Dropout as kernels take it: a random word below `threshold` drops its element.
struct Keep {
  std::uint64_t seed = 0;
  std::uint32_t purpose = 0, stream = 0, threshold = 0;
  float factor = 1;  // of those kept
};

// elementwise.cu
void fill_bits(void* y, std::int64_t count, int size, std::uint64_t bits, CUstream_st* stream);
/// Rows of `bytes` bytes.
void copy_bytes(void* y, std::int64_t y_stride, const void* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t bytes, CUstream_st* stream);
void convert(const Matrix& y, const Matrix& x, CUstream_st* stream);
void add(const Matrix& y, const Matrix& a, const Matrix& b, CUstream_st* stream);
void scale(const Matrix& y, float factor, CUstream_st* stream);
void scale_by(const Matrix& y, const float* factor, CUstream_st* stream);

/// out, other [T·H, D] fp32; lse, other_lse [H, T]; see Ops::merge_attention.
void merge_attention(const Matrix& out, float* lse, const Matrix& other, const float* other_lse,
                     std::int64_t heads, CUstream_st* stream);

// activation.cu
void gelu(const Matrix& y, const Matrix& x, CUstream_st* stream);
void gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& x, CUstream_st* stream);
void swiglu(const Matrix& y, const Matrix& gate_up, CUstream_st* stream);
void swiglu_backward(const Matrix& dgate_up, const Matrix& dy, const Matrix& gate_up,
                     CUstream_st* stream);

/// What is applied to a product's sums, if not null. `bias` and `gelu_input` have type `factors`.
struct Finish {
  Element factors = Element::f32;
  const void* bias = nullptr;
  Matrix before_gelu;  // written; c is its gelu
  Matrix gelu_input;   // c = sums·gelu'(gelu_input)
  bool accumulate = false;
};
/// c = `finish` applied to fp32 sums; c may be the same memory.
void finish_product(const Matrix& c, const Matrix& sums, const Finish& finish, CUstream_st* stream);

// plain_product.cu
/// c [m, n] = `finish` applied to op(a)·op(b), in fp32 arithmetic, for any shape and alignment.
void plain_product(const Matrix& c, const Matrix& a, const Matrix& b, bool transpose_a,
                   bool transpose_b, const Finish& finish, CUstream_st* stream);

// norm.cu: rows of any length
struct Norm {
  Matrix x;
  const void* gain = nullptr;  // of x's type
  const void* bias = nullptr;
  float* mean = nullptr;  // null: RMSNorm
  float* rstd = nullptr;
};
void norm_forward(const Matrix& y, const Norm& norm, float epsilon, CUstream_st* stream);
/// The same for norm.x = a + b, which it writes; rows of at most largest_held_row.
void add_norm_forward(const Matrix& y, const Norm& norm, const Matrix& a, const Matrix& b,
                      float epsilon, CUstream_st* stream);
/// Data of `residual` null: none.
void norm_backward(const Matrix& dx, const Matrix& dy, const Norm& norm, const Matrix& residual,
                   CUstream_st* stream);
/// The same, and dgain and dbias (null: none) as norm_weight_sums, in one pass over x and dy.
void norm_backward_fused(const Matrix& dx, float* dgain, float* dbias, const Matrix& dy,
                         const Norm& norm, const Matrix& residual, float* workspace,
                         CUstream_st* stream);
std::size_t norm_backward_workspace(std::int64_t rows, std::int64_t columns, int outputs);  // bytes

// column_sums.cu: sum [columns] += Σ over rows, in an order that depends on the shape alone
std::size_t column_sum_workspace(std::int64_t rows, std::int64_t columns, int outputs);  // bytes
void column_sum(float* sum, const Matrix& x, float* workspace, CUstream_st* stream);
/// dgain += Σ dy·(x − mean)·rstd; dbias += Σ dy where it is not null.
void norm_weight_sums(float* dgain, float* dbias, const Matrix& dy, const Norm& norm,
                      float* workspace, CUstream_st* stream);
/// first [columns] += Σ over chunks of partial [chunks, columns]; with `second`, both of partial
/// [chunks, 2, columns].
void join_column_sums(float* first, float* second, const float* partial, std::int64_t chunks,
                      std::int64_t columns, CUstream_st* stream);
/// sum [rows] += Σ over columns.
void row_sum(float* sum, const Matrix& x, CUstream_st* stream);

// tokens.cu
enum class LookupMode : std::uint8_t { write, fill_in, add };
/// ids outside [0, all) end the kernel with an error.
void embedding(const Matrix& y, const std::int32_t* ids, const Matrix& table, std::int64_t first,
               std::int64_t all, LookupMode mode, CUstream_st* stream);
std::size_t embedding_backward_workspace(std::int64_t rows, std::int64_t table_rows);
void embedding_backward(const Matrix& dtable, const std::int32_t* ids, const Matrix& dy,
                        std::int64_t first, std::int64_t all, void* workspace, CUstream_st* stream);
/// Pairs (i, i + D/2) of x [rows, heads, D].
struct RotaryShape {
  std::int64_t rows = 0, heads = 0, pairs = 0, stride = 0, head_stride = 0;
};
void rotary(void* x, Element type, const RotaryShape& shape, const std::int32_t* positions,
            const float* frequencies, bool inverse, CUstream_st* stream);
void dropout(const Matrix& y, const Matrix& x, const std::int64_t* rows, const Keep& keep,
             CUstream_st* stream);

// sort.cu: pairs by ascending key of `bits` bits, stably
std::size_t sort_workspace(std::int64_t count, int bits);
void sort_pairs(std::uint32_t* keys_out, const std::uint32_t* keys, std::int32_t* values_out,
                const std::int32_t* values, std::int64_t count, int bits, void* workspace,
                std::size_t workspace_bytes, CUstream_st* stream);

// loss.cu
void row_maximum(float* maximum, const Matrix& logits, bool accumulate, CUstream_st* stream);
void exp_sum_and_target(float* sum, float* target_logit, const Matrix& logits, const float* maximum,
                        const std::int32_t* targets, std::int64_t first, CUstream_st* stream);
void softmax_statistics(float* maximum, float* sum, float* target_logit, const Matrix& logits,
                        const std::int32_t* targets, CUstream_st* stream);
void cross_entropy_gradient(const Matrix& logits, const float* maximum, const float* sum,
                            const std::int32_t* targets, const float* factor, std::int64_t first,
                            CUstream_st* stream);
void weighted_loss(double* total, std::int64_t rows, const float* sum, const float* maximum,
                   const float* target_logit, const float* weights, CUstream_st* stream);

// optimizer.cu
inline constexpr std::int64_t square_block = 4096;
/// sums [⌈n / 4096⌉] += Σ x² of each block.
void add_block_squares(double* sums, const void* x, Element type, std::int64_t count,
                       CUstream_st* stream);
/// total += Σ x², in an order that depends on the count alone; workspace [square_groups(count)].
void add_squares(double* total, const void* x, Element type, std::int64_t count, double* workspace,
                 CUstream_st* stream);
/// The rounded copy that an update writes beside its masters; indices as in ElementIndices.
struct Rounding {
  void* values = nullptr;  // null: none
  Element type = Element::f32;
  bool stochastic = false;
  std::uint64_t seed = 0;
  std::uint32_t purpose = 0, stream = 0;
  std::int64_t first = 0, column = 0, width = 0, skip = 0;
};
/// The copy alone, of `count` values.
void round_copy(const float* from, std::int64_t count, const Rounding& copy, CUstream_st* stream);
struct AdamWConstants {
  float beta1, rest1, beta2, rest2, decay, rate, root2, epsilon, scale;
};
void adamw(float* parameters, float* moment1, float* moment2, const float* gradients,
           std::int64_t count, const AdamWConstants& constants, const Rounding& copy,
           CUstream_st* stream);
struct SgdConstants {
  float rate, momentum, decay, scale;
};
void sgd(float* parameters, float* momentum_buffer, const float* gradients, std::int64_t count,
         const SgdConstants& constants, const Rounding& copy, CUstream_st* stream);

// attention_forward.cu, attention_backward.cu
/// [B, T, heads, D], strides in elements.
struct Heads {
  void* data = nullptr;
  std::int64_t batch_stride = 0, stride = 0, head_stride = 0;
};

/// One call of attention. Null positions are 0, 1, 2, …; null documents are one document.
struct Attention {
  Element type = Element::f32;
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, groups = 0, size = 0;
  std::int64_t first_head = 0, all_heads = 0, share = 0;
  float scale = 0;
  bool causal = true;
  const std::int32_t *query_positions = nullptr, *key_positions = nullptr;
  const std::int32_t *query_documents = nullptr, *key_documents = nullptr;
  const std::int64_t* samples = nullptr;  // null: no dropout
  Keep keep;
  Heads q, k, v, out;
  float* lse = nullptr;  // [B, H, Tq]

  constexpr std::int64_t group_of(std::int64_t head) const {
    return (first_head + head) / share - first_head / share;
  }
  /// The first query head here that uses key/value head `group`; for the last group + 1, all.
  constexpr std::int64_t first_head_of(std::int64_t group) const {
    const std::int64_t first = (first_head / share + group) * share - first_head;
    return first < 0 ? 0 : first > heads ? heads : first;
  }
};
inline constexpr std::int64_t largest_head = 256;

std::size_t attention_workspace(const Attention& call);
void attention_forward(const Attention& call, void* workspace, CUstream_st* stream);

struct AttentionGradients {
  Heads dout, dq, dk, dv;
};
std::size_t attention_backward_workspace(const Attention& call);
void attention_backward(const Attention& call, const AttentionGradients& gradients, void* workspace,
                        CUstream_st* stream);

// How kernels divide their work, as functions of shapes: for kernels, for the size of their
// workspace, and for tests without a device.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Sums over rows: rows are divided into chunks, whose sums are then added. The number of chunks
/// depends on the shape alone, not on the device.
constexpr std::int64_t sum_chunks(std::int64_t rows) {
  const std::int64_t chunks = ceil_div(rows, 64);
  return chunks < 128 ? chunks : 128;
}
constexpr std::int64_t rows_of_chunk(std::int64_t rows) {
  return rows == 0 ? 1 : ceil_div(rows, sum_chunks(rows));
}

/// Norms hold rows up to this long in registers.
inline constexpr std::int64_t largest_held_row = 8192;
/// Blocks of a norm's forward, which read gain and bias once for several rows: eight for each
/// multiprocessor of a large GPU.
constexpr std::int64_t norm_blocks(std::int64_t groups) { return groups < 1056 ? groups : 1056; }
/// Blocks that each add up their rows' gradients for gain and bias, with a warp for each row up to
/// 1,024 columns, and a block for longer ones: three for each multiprocessor of a large GPU.
constexpr std::int64_t norm_chunks(std::int64_t rows, std::int64_t columns) {
  const std::int64_t blocks = columns <= 1024 ? ceil_div(rows, 4) : rows;
  return blocks < 384 ? blocks : 384;
}

/// The partial sums of add_squares: enough to occupy a device, few enough for one block to add.
constexpr int square_groups(std::int64_t count) {
  const std::int64_t blocks = ceil_div(count, square_block);
  return blocks < 1024 ? static_cast<int>(blocks) : 1024;
}

/// Bits of keys 0 … largest.
constexpr int key_bits(std::int64_t largest) {
  int bits = 1;
  while (bits < 32 && (largest >> bits) != 0) ++bits;
  return bits;
}

/// Elements of 16 bits before the first multiple of 16 bytes from `address` on.
constexpr int elements_to_boundary(std::uintptr_t address, int size) {
  return static_cast<int>((16 - address % 16) % 16) / size;
}

/// Attention: a block of 64 queries (or keys, for their gradients) iterates over tiles of others.
inline constexpr int own_rows = 64;
/// Head sizes are padded with zeros to 64, 128 or 256.
constexpr int padded_head(std::int64_t size) { return size <= 64 ? 64 : size <= 128 ? 128 : 256; }
constexpr int tile_rows(int padded) { return padded == 64 ? 64 : 32; }
/// Elements from one row in shared memory to the next: padded by 16 bytes, so that equal columns of
/// eight rows are in different banks.
constexpr int row_elements(int padded, int element_bytes) { return padded + 16 / element_bytes; }

}  // namespace trireme::ops
