#include "trireme/bench/exact.hpp"

#include <algorithm>
#include <cstring>

#include "trireme/core/half.hpp"

namespace trireme::bench {
namespace {

template <class T>
void put(std::byte* memory, std::int64_t index, T value) {
  std::memcpy(memory + index * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
}
template <class T>
T get(const std::byte* memory, std::int64_t index) {
  T value;
  std::memcpy(&value, memory + index * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

[[noreturn]] void no_benchmarks(DType type) {
  throw Error("{}: has no benchmarks; use fp32, bf16, fp16, fp64 or int64", name_of(type));
}

}  // namespace

std::int64_t exact_limit(DType type) {
  if (type == DType::bf16) return 1 << 8;
  if (type == DType::f16) return 1 << 11;
  if (type == DType::f32 || type == DType::f64 || type == DType::i64) return 1 << 24;
  no_benchmarks(type);
}

void store(DType type, std::byte* memory, std::int64_t index, double value) {
  switch (type) {
    case DType::f32:
      return put(memory, index, static_cast<float>(value));
    case DType::bf16:
      return put(memory, index, float_to_bf16(static_cast<float>(value)));
    case DType::f16:
      return put(memory, index, float_to_fp16(static_cast<float>(value)));
    case DType::f64:
      return put(memory, index, value);
    case DType::i64:
      return put(memory, index, static_cast<std::int64_t>(value));
    case DType::i32:
    case DType::u16:
    case DType::u8:
      break;
  }
  no_benchmarks(type);
}

double load(DType type, const std::byte* memory, std::int64_t index) {
  switch (type) {
    case DType::f32:
      return get<float>(memory, index);
    case DType::bf16:
      return bf16_to_float(get<std::uint16_t>(memory, index));
    case DType::f16:
      return fp16_to_float(get<std::uint16_t>(memory, index));
    case DType::f64:
      return get<double>(memory, index);
    case DType::i64:
      return static_cast<double>(get<std::int64_t>(memory, index));
    case DType::i32:
    case DType::u16:
    case DType::u8:
      break;
  }
  no_benchmarks(type);
}

Numbers Numbers::for_sums_of(std::int64_t ranks, DType type) {
  return {std::clamp<std::int64_t>(exact_limit(type) / ranks + 1, 2, 64)};
}

std::int64_t Numbers::at(std::int64_t rank, std::int64_t place) const {
  // Rounds of multiplication and shift: every bit of rank and place counts.
  std::uint64_t x = static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15ULL +
                    static_cast<std::uint64_t>(rank + 1) * 0xd1342543de82ef95ULL;
  x = (x ^ (x >> 29)) * 0xda942042e4dd58b5ULL;
  x ^= x >> 32;
  return static_cast<std::int64_t>(x % static_cast<std::uint64_t>(modulus));
}

void zero(device::Device& device, const Tensor& tensor) {
  const std::vector<std::byte> zeros(tensor.bytes());
  device::write(device, tensor, zeros.data());
}

void poison(device::Device& device, const Tensor& tensor) {
  // NaN of every float type, and −1.
  const std::vector<std::byte> ones(tensor.bytes(), std::byte{0xff});
  device::write(device, tensor, ones.data());
}

}  // namespace trireme::bench
