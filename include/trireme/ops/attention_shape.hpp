#pragma once

#include <cstdint>

namespace trireme::ops {

/// The shape of an attention call: B sequences, Tq queries, Tk keys, H heads on G key/value heads
/// of size D.
struct AttentionShape {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, groups = 0, size = 0;
};

}  // namespace trireme::ops
