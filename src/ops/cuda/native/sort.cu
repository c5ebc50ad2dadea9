// Sorting by CUB's radix sort: stable and deterministic.
#include <cub/device/device_radix_sort.cuh>

#include "kernels.hpp"
#include "language.cuh"

namespace trireme::ops {

std::size_t sort_workspace(std::int64_t count, int bits) {
  std::size_t bytes = 0;
  device::check_cuda(
      static_cast<int>(cub::DeviceRadixSort::SortPairs(
          nullptr, bytes, static_cast<const std::uint32_t*>(nullptr),
          static_cast<std::uint32_t*>(nullptr), static_cast<const std::int32_t*>(nullptr),
          static_cast<std::int32_t*>(nullptr), count, 0, bits)),
      "cub::DeviceRadixSort::SortPairs");
  return bytes;
}

void sort_pairs(std::uint32_t* keys_out, const std::uint32_t* keys, std::int32_t* values_out,
                const std::int32_t* values, std::int64_t count, int bits, void* workspace,
                std::size_t workspace_bytes, CUstream_st* stream) {
  device::check_cuda(
      static_cast<int>(cub::DeviceRadixSort::SortPairs(workspace, workspace_bytes, keys, keys_out,
                                                       values, values_out, count, 0, bits, stream)),
      "cub::DeviceRadixSort::SortPairs");
}

}  // namespace trireme::ops
