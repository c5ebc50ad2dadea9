#include "trireme/ops/workspace.hpp"

namespace trireme::ops {

bool cuda_attention_fuses(const AttentionShape& shape) {
  return shape.batch > 0 && shape.queries == shape.keys && shape.queries > 1 && shape.groups > 0 &&
         shape.heads % shape.groups == 0 && shape.size % 8 == 0 && shape.size <= 128;
}

std::size_t cuda_attention_workspace(const AttentionShape& shape, bool deterministic) {
  constexpr std::int64_t narrow = 2, wide = 4, alignment = 2048;
  constexpr std::int64_t block = 128, few = 16;  // tokens that kernels round up to
  const auto up = [](std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; };
  const std::int64_t rows = shape.batch * shape.heads * shape.queries;
  const std::int64_t scores =
      shape.batch * shape.heads * up(shape.queries, block) * up(shape.keys, block) * narrow;
  const std::int64_t gradients =
      2 * shape.batch * shape.heads * up(shape.queries, few) * shape.size * wide;
  const std::int64_t shared = shape.heads == shape.groups ? 0 : 2 * rows * shape.size * narrow;
  return static_cast<std::size_t>(rows * wide + (deterministic ? scores : gradients) + shared +
                                  alignment);
}

}  // namespace trireme::ops
