// A product of bf16 factors, and how its extents are divided.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/core/error.hpp"
#include "trireme/ops/ops.hpp"

#include "bf16_tiles.hpp"
#include "rows.hpp"

namespace trireme::ops {

/// Near-equal blocks of [0, all), multiples of `unit` except the last.
struct Blocks {
  std::int64_t all = 0, each = 1;
  Blocks(std::int64_t all, std::int64_t count, std::int64_t unit)
      : all(all), each(std::max<std::int64_t>(1, parts(parts(all, unit), count)) * unit) {}
  std::int64_t count() const { return parts(all, each); }
  std::int64_t most() const { return std::min(all, each); }
  std::int64_t begin(std::int64_t i) const { return i * each; }
  std::int64_t end(std::int64_t i) const { return std::min(all, (i + 1) * each); }
};

// Inner extent that is summed at once; even.
constexpr std::int64_t depth = 4096;

/// One product and its result.
struct NarrowProduct {
  Rows<Bf16> left;
  Rows<Bf16> right = {};
  Rows<float> wide_right = {};  // one of the two; rounded while packed
  bool transpose_left, transpose_right;
  Rows<float> wide = {};
  Rows<Bf16> narrow = {};  // one of the two
  bool accumulate;
  const Bf16* bias = nullptr;
  Rows<Bf16> gelu = {};        // [m, n] = gelu(product); absent: none
  Rows<Bf16> gelu_input = {};  // [m, n], whose slopes multiply the product; absent: none
};

/// words ← rows [from, from + k) and columns [column, column + n) of the right factor.
inline void pack_right(const NarrowProduct& p, std::int64_t from, std::int64_t k,
                       std::int64_t column, std::int64_t n, std::uint32_t* words) {
  const std::int64_t row = p.transpose_right ? column : from;
  const std::int64_t offset = p.transpose_right ? from : column;
  if (p.wide_right.data != nullptr) {
    bf16_tiles().pack_wide(k, n, p.transpose_right, p.wide_right.row(row) + offset,
                           p.wide_right.stride, words);
  } else {
    bf16_tiles().pack(k, n, p.transpose_right, p.right.row(row) + offset, p.right.stride, words);
  }
}

inline bool is_wide(const Matmul& p) {
  return (p.options.before_gelu ? p.options.before_gelu : p.c).type() == DType::f32;
}

/// `work`: for the rounded bias.
inline NarrowProduct product_of(const Matmul& call, std::int64_t n, Bf16* work) {
  const MatmulOptions& options = call.options;
  const bool gelu = bool(options.before_gelu), dgelu = bool(options.gelu_input);
  const Tensor& product = gelu ? options.before_gelu : call.c;
  NarrowProduct p{.left = rows_of<Bf16>(call.a),
                  .transpose_left = options.transpose_a,
                  .transpose_right = options.transpose_b,
                  .accumulate = options.accumulate};
  if (call.b.type() == DType::f32) {
    p.wide_right = rows_of<float>(call.b);
  } else {
    p.right = rows_of<Bf16>(call.b);
  }
  if (is_wide(call)) {
    TRIREME_ASSERT(!gelu && !dgelu, "an activation beside a product into {}",
                   call.c.shape().to_string());
    p.wide = rows_of<float>(product);
  } else {
    p.narrow = rows_of<Bf16>(product);
  }
  if (gelu) p.gelu = rows_of<Bf16>(call.c);
  if (dgelu) p.gelu_input = rows_of<Bf16>(options.gelu_input);
  p.bias = read_as(options.bias, n, work);
  return p;
}

}  // namespace trireme::ops
