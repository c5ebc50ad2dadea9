// Non-owning views of typed memory: what every op, unit and communicator takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/core/error.hpp"
#include "trireme/core/half.hpp"

namespace trireme {

std::size_t size_of(DType type);  // bytes per element
std::string_view name_of(DType type);
DType dtype_from_name(std::string_view name);  // throws Error for a name it does not know

/// The first of `n` elements in host memory that is NaN or infinite; `n`: there is none, as in
/// integers.
std::int64_t first_not_finite(const void* elements, std::int64_t n, DType type);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};

/// Up to four extents. Row-major unless a Tensor has strides.
class Shape {
 public:
  static constexpr int max_dimensions = 4;
  Shape() = default;
  explicit Shape(std::span<const std::int64_t> extents);
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span(extents.begin(), extents.size())) {}
  int dimensions() const { return dimensions_; }
  std::int64_t operator[](int dimension) const { return extents_[dimension]; }
  std::int64_t& operator[](int dimension) { return extents_[dimension]; }
  std::int64_t elements() const;
  bool operator==(const Shape& other) const;
  std::string to_string() const;  // "[3, 48]"

 private:
  std::array<std::int64_t, max_dimensions> extents_{};
  int dimensions_ = 0;
};

/// A typed, strided view; strides count elements; the last dimension is contiguous. A default
/// constructed Tensor is absent (`if (bias) …`).
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType type, const Shape& shape);  // contiguous
  Tensor(void* data, DType type, const Shape& shape, const std::array<std::int64_t, 4>& strides);
  template <class T>
  Tensor(T* data, const Shape& shape)
      : Tensor(static_cast<void*>(data), DTypeOf<T>::value, shape) {}

  explicit operator bool() const { return data_ != nullptr; }
  template <class T>
  T* as() const {
    TRIREME_ASSERT(DTypeOf<T>::value == type_, "tensor of {}", name_of(type_));
    return static_cast<T*>(data_);
  }
  void* data() const { return data_; }
  DType type() const { return type_; }
  const Shape& shape() const { return shape_; }
  std::int64_t extent(int dimension) const { return shape_[dimension]; }
  std::int64_t stride(int dimension) const { return strides_[dimension]; }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(type_); }
  bool contiguous() const;

  /// [begin, end) of one dimension; shares the memory.
  Tensor slice(int dimension, std::int64_t begin, std::int64_t end) const;
  /// The same elements under another shape; the view must be contiguous.
  Tensor reshape(const Shape& shape) const;

 private:
  void* data_ = nullptr;
  DType type_ = DType::f32;
  Shape shape_;
  std::array<std::int64_t, 4> strides_{};
};

}  // namespace trireme
