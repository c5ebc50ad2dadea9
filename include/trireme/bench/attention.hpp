// Causal attention of given shapes, forward and backward: speed, and whether the results are right.
#pragma once

#include <vector>

#include "trireme/bench/measure.hpp"
#include "trireme/bench/sheet.hpp"

namespace trireme::bench {

/// Floating-point operations of causal attention with `out` [B, Tq, H, D] and `k` [B, Tk, G, D]:
/// two products of half of Tq·Tk scores.
inline double attention_operations(const Tensor& out, const Tensor& k) {
  return 2.0 * static_cast<double>(out.elements()) * static_cast<double>(k.extent(1));
}
/// Of its backward: five, one of which forward had made.
inline double attention_backward_operations(const Tensor& dq, const Tensor& k) {
  return 5.0 * static_cast<double>(dq.elements()) * static_cast<double>(k.extent(1));
}

struct AttentionShape {
  std::int64_t sequences = 1, heads = 1, tokens = 1, head_size = 1;  // B, H, T, D
  std::int64_t kv_heads = 1;                                         // G, a divisor of H
};

struct AttentionOptions {
  std::vector<AttentionShape> shapes;
  std::vector<DType> types;
  Rounds rounds;
};

/// Every rank on its own, all at once; collective over the world. Some rows of each result are
/// compared with plain sums in fp64, within what the type's rounding allows.
void bench_attention(const Place& place, const AttentionOptions& options, Sheet& sheet);

}  // namespace trireme::bench
