// Dropout as kernels take it.
#pragma once

#include <cmath>

#include "trireme/ops/ops.hpp"

#include "kernels.hpp"

namespace trireme::ops {

/// The threshold and factor of the CPU's backend.
inline Keep keep_of(const Dropout& dropout) {
  return {dropout.key.seed, static_cast<std::uint32_t>(dropout.key.purpose), dropout.key.stream,
          static_cast<std::uint32_t>(std::ceil(double{dropout.rate} * 4294967296.0)),
          1.0F / (1.0F - dropout.rate)};
}

}  // namespace trireme::ops
