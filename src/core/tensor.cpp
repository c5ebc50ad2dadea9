#include "trireme/core/tensor.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace trireme {
namespace {

struct TypeRow {
  DType type;
  std::string_view name;
  std::size_t size;
};
constexpr TypeRow types[] = {
    {DType::f32, "fp32", 4},   {DType::bf16, "bf16", 2}, {DType::f16, "fp16", 2},
    {DType::f64, "fp64", 8},   {DType::i32, "int32", 4}, {DType::i64, "int64", 8},
    {DType::u16, "uint16", 2}, {DType::u8, "uint8", 1},
};

const TypeRow& row_of(DType type) {
  const auto index = static_cast<std::size_t>(type);
  TRIREME_ASSERT(index < std::size(types), "element type {}", index);
  return types[index];
}

/// Of floating-point numbers whose exponent has the bits `exponent`.
template <class Bits>
std::int64_t first_with_exponent(const void* elements, std::int64_t n, Bits exponent) {
  constexpr std::int64_t group = 1024;  // without a branch for each, so that it is vectorized
  const auto* bytes = static_cast<const std::byte*>(elements);
  const auto found = [&](std::int64_t i) {
    Bits bits;  // a copy: the elements are of another type
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
    return (bits & exponent) == exponent;
  };
  for (std::int64_t begin = 0; begin < n; begin += group) {
    const std::int64_t end = std::min(n, begin + group);
    bool any = false;
    for (std::int64_t i = begin; i < end; ++i) any |= found(i);
    for (std::int64_t i = begin; any && i < end; ++i) {
      if (found(i)) return i;
    }
  }
  return n;
}

std::array<std::int64_t, 4> contiguous_strides(const Shape& shape) {
  std::array<std::int64_t, 4> strides{};
  std::int64_t stride = 1;
  for (int d = shape.dimensions() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

}  // namespace

std::size_t size_of(DType type) { return row_of(type).size; }

std::string_view name_of(DType type) { return row_of(type).name; }

DType dtype_from_name(std::string_view name) {
  const auto* row = std::find_if(std::begin(types), std::end(types),
                                 [&](const TypeRow& candidate) { return candidate.name == name; });
  if (row != std::end(types)) return row->type;
  std::string known;
  for (const TypeRow& each : types) known.append(known.empty() ? "" : ", ").append(each.name);
  throw Error("element type '{}': not known; use one of {}", name, known);
}

std::int64_t first_not_finite(const void* elements, std::int64_t n, DType type) {
  switch (type) {
    case DType::f32:
      return first_with_exponent(elements, n, std::uint32_t{0x7f800000});
    case DType::f64:
      return first_with_exponent(elements, n, std::uint64_t{0x7ff} << 52);
    case DType::bf16:
      return first_with_exponent(elements, n, std::uint16_t{0x7f80});
    case DType::f16:
      return first_with_exponent(elements, n, std::uint16_t{0x7c00});
    case DType::i32:
    case DType::i64:
    case DType::u16:
    case DType::u8:
      return n;
  }
  no_case_for(type);
}

Shape::Shape(std::span<const std::int64_t> extents)
    : dimensions_(static_cast<int>(extents.size())) {
  TRIREME_ASSERT(dimensions_ <= max_dimensions, "{} dimensions", dimensions_);
  std::copy(extents.begin(), extents.end(), extents_.begin());
  for (const std::int64_t extent : extents) TRIREME_ASSERT(extent >= 0, "extent {}", extent);
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int d = 0; d < dimensions_; ++d) product *= extents_[d];
  return product;
}

bool Shape::operator==(const Shape& other) const {
  return dimensions_ == other.dimensions_ &&
         std::equal(extents_.begin(), extents_.begin() + dimensions_, other.extents_.begin());
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int d = 0; d < dimensions_; ++d) {
    text.append(d > 0 ? ", " : "").append(std::to_string(extents_[d]));
  }
  return text + "]";
}

Tensor::Tensor(void* data, DType type, const Shape& shape)
    : Tensor(data, type, shape, contiguous_strides(shape)) {}

Tensor::Tensor(void* data, DType type, const Shape& shape,
               const std::array<std::int64_t, 4>& strides)
    : data_(data), type_(type), shape_(shape), strides_(strides) {
  const int last = shape.dimensions() - 1;
  TRIREME_ASSERT(last < 0 || strides[last] == 1 || shape[last] <= 1,
                 "stride {} of the last dimension", strides[last]);
}

bool Tensor::contiguous() const {
  if (elements() == 0) return true;
  const std::array<std::int64_t, 4> expected = contiguous_strides(shape_);
  for (int d = 0; d < shape_.dimensions(); ++d) {
    // The stride of a dimension with one entry is never taken.
    if (shape_[d] != 1 && strides_[d] != expected[d]) return false;
  }
  return true;
}

Tensor Tensor::slice(int dimension, std::int64_t begin, std::int64_t end) const {
  TRIREME_ASSERT(dimension >= 0 && dimension < shape_.dimensions(), "dimension {} of {}", dimension,
                 shape_.to_string());
  TRIREME_ASSERT(begin >= 0 && begin <= end && end <= shape_[dimension],
                 "[{}, {}) of dimension {} of {}", begin, end, dimension, shape_.to_string());
  Tensor result = *this;
  result.shape_[dimension] = end - begin;
  if (data_ != nullptr) {
    result.data_ = static_cast<std::byte*>(data_) +
                   begin * strides_[dimension] * static_cast<std::int64_t>(size_of(type_));
  }
  return result;
}

Tensor Tensor::reshape(const Shape& shape) const {
  TRIREME_ASSERT(contiguous(), "reshape of a strided view of {}", shape_.to_string());
  TRIREME_ASSERT(shape.elements() == elements(), "{} as {}", shape_.to_string(), shape.to_string());
  return {data_, type_, shape};
}

}  // namespace trireme
