// Recomputes rows of attention's results with plain sums in fp64: the oracle of the benchmark.
#pragma once

#include <span>
#include <vector>

#include "trireme/bench/attention.hpp"

namespace trireme::bench {

/// Everything as the host reads it, widened: [B, T, H or G, D] each, and lse [B, H, T].
struct AttentionValues {
  std::vector<double> q, k, v, out, dout, dq, dk, dv, lse;
};

/// Wrong elements among some rows of out and lse (`backward` false), or of dq, dk and dv, in
/// attention that computes in `type`. An element is wrong where it is further from the plain sum
/// than rounding explains: each term of the sum may be off by a few units of `type`'s rounding and
/// of the T + D additions in fp32 before it.
std::int64_t count_wrong_rows(const AttentionShape& shape, DType type, double scale,
                              const AttentionValues& values, bool backward);

}  // namespace trireme::bench
