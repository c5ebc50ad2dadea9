// Products of bf16 by oneDNN's primitives: for processors with AMX, which our own tiles do not use.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "storage.hpp"

namespace trireme::ops {

/// What a primitive is made for. Strides are those of the stored matrices' rows, in elements.
struct OnednnProduct {
  std::int64_t m, n, k;  // none is 0
  bool transpose_a, transpose_b;
  std::int64_t a_stride, b_stride, c_stride;
  bool wide;        // c is fp32
  bool accumulate;  // c +=
  bool bias;
  int threads;
  auto operator<=>(const OnednnProduct&) const = default;
};

/// Primitives, each made when its product is first met and kept. Not thread-safe.
class OnednnProducts {
 public:
  OnednnProducts();
  ~OnednnProducts();
  /// Whether they are faster here than our tiles.
  static bool preferred();
  /// Primitives kept at most: past that, all are made again.
  static constexpr std::size_t most = 512;
  /// The name of oneDNN's implementation, for people.
  const char* implementation(const OnednnProduct& product);
  void run(const OnednnProduct& product, const Bf16* a, const Bf16* b, void* c, const Bf16* bias);

 private:
  struct Made;
  struct Cache;
  Made& find(const OnednnProduct& product);
  std::unique_ptr<Cache> cache_;
};

}  // namespace trireme::ops
