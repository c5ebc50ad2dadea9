// Storage types of tensors, and kernels instantiated for each.
#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/core/half.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// A stored bf16: kernels load it as fp32 and store it rounded to nearest even.
struct Bf16 {
  std::uint16_t bits;
  bool operator==(const Bf16&) const = default;  // of bits
};
template <>
struct DTypeOf<Bf16> : std::integral_constant<DType, DType::bf16> {};

namespace ops {

inline float widened(float value) { return value; }
inline float widened(Bf16 value) { return bf16_to_float(value.bits); }

inline Bf16 rounded(float value) { return {float_to_bf16(value)}; }
inline Bf16 rounded(Bf16 value) { return value; }

inline void narrow(float value, float& to) { to = value; }
inline void narrow(float value, Bf16& to) { to = rounded(value); }

/// body(T()) with the storage type T of `type`.
template <class Body>
void with_storage(DType type, const Body& body) {
  if (type == DType::bf16) return body(Bf16{});
  TRIREME_ASSERT(type == DType::f32, "the CPU computes in fp32 and bf16, not in {}", name_of(type));
  body(float{});
}

template <class T, class OfFloat, class OfBf16>
auto* kernel_for(OfFloat& of_float, OfBf16& of_bf16) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return &of_bf16;
  } else {
    return &of_float;
  }
}

}  // namespace ops
}  // namespace trireme

// Highway's dispatch tables hold functions, not templates. INSTANCES, in each instruction set's
// namespace, names the two instances of a kernel template; EXPORT, beside HWY_ONCE, makes their
// tables; KERNEL selects the one for T.
// NOLINTBEGIN(bugprone-macro-parentheses): a template's name cannot be in parentheses
#define TRIREME_INSTANCES(name)             \
  constexpr auto& name##_f32 = name<float>; \
  constexpr auto& name##_bf16 = name<Bf16>
// NOLINTEND(bugprone-macro-parentheses)
#define TRIREME_EXPORT(name) \
  HWY_EXPORT(name##_f32);    \
  HWY_EXPORT(name##_bf16)
#define TRIREME_KERNEL(name, T) \
  kernel_for<T>(HWY_DYNAMIC_DISPATCH(name##_f32), HWY_DYNAMIC_DISPATCH(name##_bf16))
