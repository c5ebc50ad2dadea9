// Bytes of work space that calls of the CPU backend take, known before they are made. The backend
// holds as much as its most demanding call so far.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/ops/attention_shape.hpp"

namespace trireme::ops {

/// `attention` and `attention_backward`, the larger, on `threads` threads.
std::size_t cpu_attention_workspace(const AttentionShape& shape, int threads);
/// The same of bf16.
std::size_t cpu_narrow_attention_workspace(const AttentionShape& shape, int threads);
/// A product [m, k]·[k, n] of bf16 factors, the first of them transposed or not, into bf16 or
/// (`wide`) fp32, a vector that is rounded (a bias) included; those of fp32 take none.
std::size_t cpu_product_workspace(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed,
                                  bool wide, int threads);
/// column_sum, or a norm's backward for weights, of [rows, columns] into `outputs` sums.
std::size_t cpu_row_sum_workspace(std::int64_t rows, std::int64_t columns, int outputs);

}  // namespace trireme::ops
