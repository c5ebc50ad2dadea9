#include <algorithm>
#include <numeric>
#include <vector>

#include "trireme/core/error.hpp"

#include "../../../src/ops/cuda/kernels.hpp"

namespace trireme::ops {

std::size_t sort_workspace(std::int64_t, int) { return 1; }

void sort_pairs(std::uint32_t* keys_out, const std::uint32_t* keys, std::int32_t* values_out,
                const std::int32_t* values, std::int64_t count, int bits, void*, std::size_t,
                CUstream_st*) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return keys[a] < keys[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    TRIREME_ASSERT(bits == 32 || keys[order[i]] >> bits == 0, "key {} of {} bits", keys[order[i]],
                   bits);
    keys_out[i] = keys[order[i]];
    values_out[i] = values[order[i]];
  }
}

}  // namespace trireme::ops
