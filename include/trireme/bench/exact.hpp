// Numbers with exact sums: whole numbers so small that no type rounds them or their sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/tensor.hpp"
#include "trireme/device/device.hpp"

namespace trireme::bench {

/// The largest n such that `type` holds all whole numbers up to n (2^24 at most: more is not
/// needed).
std::int64_t exact_limit(DType type);

/// The `type` value that is nearest to `value`, as element `index` of `memory`; and back.
void store(DType type, std::byte* memory, std::int64_t index, double value);
double load(DType type, const std::byte* memory, std::int64_t index);

/// A whole number for each rank and place. They differ between places and between ranks, so that
/// misplaced data are found.
struct Numbers {
  std::int64_t modulus = 2;  // they are 0 … modulus − 1
  /// Such that `ranks` of them add up to what `type` holds; 2 where there are too many ranks for
  /// it, whose sums it then rounds once.
  static Numbers for_sums_of(std::int64_t ranks, DType type);
  std::int64_t at(std::int64_t rank, std::int64_t place) const;
};

void zero(device::Device& device, const Tensor& tensor);
/// Fills with a value that is in no result, so that unwritten memory is found.
void poison(device::Device& device, const Tensor& tensor);

/// Elements of `tensor` [n] that are not the `type` value nearest to expected(i): exact results
/// or wrong ones.
template <class Expected>
std::int64_t count_wrong(device::Device& device, const Tensor& tensor, const Expected& expected) {
  std::vector<std::byte> host(tensor.bytes());
  device::read(device, host.data(), tensor);
  std::byte rounded[8];
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    store(tensor.type(), rounded, 0, static_cast<double>(expected(i)));
    // NaN is equal to nothing.
    wrong += load(tensor.type(), host.data(), i) == load(tensor.type(), rounded, 0) ? 0 : 1;
  }
  return wrong;
}

/// Writes value(i) into `tensor` [n].
template <class Value>
void fill_with(device::Device& device, const Tensor& tensor, const Value& value) {
  std::vector<std::byte> host(tensor.bytes());
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    store(tensor.type(), host.data(), i, static_cast<double>(value(i)));
  }
  device::write(device, tensor, host.data());
}

}  // namespace trireme::bench
