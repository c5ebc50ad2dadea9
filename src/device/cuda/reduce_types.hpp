// The types and operations of a reduction, for the host's loops and for kernels alike.
#pragma once

#include <cstdint>

#include "trireme/core/half.hpp"

namespace trireme::device::kernels {

// How a type is stored and what it is added in.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  TRIREME_ON_DEVICE static Value load(Stored x) { return x; }
  TRIREME_ON_DEVICE static Stored store(Value x) { return x; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Value = float;
  TRIREME_ON_DEVICE static Value load(Stored x) { return bf16_to_float(x); }
  TRIREME_ON_DEVICE static Stored store(Value x) { return float_to_bf16(x); }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Value = float;
  TRIREME_ON_DEVICE static Value load(Stored x) { return fp16_to_float(x); }
  TRIREME_ON_DEVICE static Stored store(Value x) { return float_to_fp16(x); }
};

struct Sum {
  template <class T>
  TRIREME_ON_DEVICE static T join(T a, T b) {
    return a + b;
  }
  TRIREME_ON_DEVICE static std::int64_t join(std::int64_t a, std::int64_t b) {  // wraps round
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct Max {
  template <class T>
  TRIREME_ON_DEVICE static T join(T a, T b) {
    return a > b || a != a ? a : b;  // a NaN on either side stays
  }
};

}  // namespace trireme::device::kernels
