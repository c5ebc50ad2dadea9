// Boxes of a logical tensor: the unit in which checkpoints store, check and read.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Elements whose index is in [begin, begin + extent) in every dimension.
struct Box {
  Index begin{};
  Shape extent;
  std::int64_t elements() const { return extent.elements(); }
  std::int64_t end(int d) const { return begin[static_cast<std::size_t>(d)] + extent[d]; }
};

/// "[3, 48]", or "[]" for a scalar's only element.
std::string to_string(const Index& index, int dimensions);

/// The index of element `element` in row-major order of `box`, counted from the tensor's beginning.
Index index_of(const Box& box, std::int64_t element);

/// Whether `box` has as many dimensions as `whole` and is inside it.
bool fits(const Box& box, const Shape& whole);

/// The intersection; its extent is zero where there is none.
Box intersection(const Box& a, const Box& b);

/// An element that not exactly one box holds: the first such in row-major order.
struct CoverFault {
  Index at{};
  std::int64_t holders = 0;
};
/// Nothing when `boxes`, which all fit, hold each element of `whole` exactly once. In time
/// n·log n: the alternating sums over a box's 2^d corners, added over all boxes, determine how many
/// boxes hold each element, and so must leave those of `whole` alone.
std::optional<CoverFault> find_cover_fault(const Shape& whole, const std::vector<Box>& boxes);

/// Visits the stretches of `part` that are contiguous both in `stored`, which is row-major, and in
/// `data`, a view of `wanted`: visit(first element in `stored`, first element in the memory of
/// `data`, elements), in the order of `stored`. `part` is inside both boxes.
template <class Visit>
void for_each_stretch(const Box& part, const Box& stored, const Box& wanted, const Tensor& data,
                      const Visit& visit) {
  if (part.elements() == 0) return;
  const int dimensions = part.extent.dimensions();
  std::int64_t from = 0, to = 0;
  Index stride{};  // of `stored`
  std::int64_t product = 1;
  for (int d = dimensions - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    stride[i] = product;
    product *= stored.extent[d];
    from += (part.begin[i] - stored.begin[i]) * stride[i];
    to += (part.begin[i] - wanted.begin[i]) * data.stride(d);
  }
  std::int64_t elements = 1;
  int outer = dimensions;  // dimensions that do not join a stretch
  for (; outer > 0; --outer) {
    const int d = outer - 1;
    const bool joins =
        stride[static_cast<std::size_t>(d)] == elements && data.stride(d) == elements;
    if (part.extent[d] != 1 && !joins) break;
    elements *= part.extent[d];
  }
  Index at{};
  for (;;) {
    visit(from, to, elements);
    int d = outer - 1;
    for (; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      from += stride[i];
      to += data.stride(d);
      if (++at[i] < part.extent[d]) break;
      from -= stride[i] * at[i];
      to -= data.stride(d) * at[i];
      at[i] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace trireme::checkpoint
