// Boxes of a logical tensor.
#include <algorithm>
#include <utility>

#include "manifest.hpp"

namespace trireme::checkpoint {

std::string to_string(const Index& index, int dimensions) {
  std::string text = "[";
  for (int d = 0; d < dimensions; ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(index[static_cast<std::size_t>(d)]);
  }
  return text + "]";
}

Index index_of(const Box& box, std::int64_t element) {
  Index index = box.begin;
  for (int d = box.extent.dimensions() - 1; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] += element % box.extent[d];
    element /= box.extent[d];
  }
  return index;
}

bool fits(const Box& box, const Shape& whole) {
  if (box.extent.dimensions() != whole.dimensions()) return false;
  for (int d = 0; d < whole.dimensions(); ++d) {
    const std::int64_t begin = box.begin[static_cast<std::size_t>(d)];
    if (begin < 0 || box.extent[d] < 0 || box.extent[d] > whole[d] ||
        begin > whole[d] - box.extent[d]) {
      return false;
    }
  }
  return true;
}

Box intersection(const Box& a, const Box& b) {
  Box result = a;
  for (int d = 0; d < a.extent.dimensions(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    result.begin[i] = std::max(a.begin[i], b.begin[i]);
    result.extent[d] = std::max<std::int64_t>(0, std::min(a.end(d), b.end(d)) - result.begin[i]);
  }
  return result;
}

// The number of boxes that hold an element is the sum of the signed corners at or before it in
// every dimension. So up to the first corner, in row-major order, at which the sum over all boxes
// differs from that of `whole`, every element is held once, and at it the difference shows.
std::optional<CoverFault> find_cover_fault(const Shape& whole, const std::vector<Box>& boxes) {
  const int dimensions = whole.dimensions();
  std::vector<std::pair<Index, std::int64_t>> corners;
  corners.reserve((boxes.size() + 1) << dimensions);
  const auto add = [&](const Box& box, std::int64_t sign) {
    if (box.elements() == 0) return;
    for (unsigned ends = 0; ends < 1U << dimensions; ++ends) {
      Index corner{};
      std::int64_t value = sign;
      for (int d = 0; d < dimensions; ++d) {
        const bool end = (ends >> d & 1U) != 0;
        corner[static_cast<std::size_t>(d)] =
            end ? box.end(d) : box.begin[static_cast<std::size_t>(d)];
        if (end) value = -value;
      }
      corners.emplace_back(corner, value);
    }
  };
  for (const Box& box : boxes) add(box, 1);
  add({{}, whole}, -1);
  std::sort(corners.begin(), corners.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < corners.size();) {
    std::int64_t sum = 0;
    std::size_t next = i;
    for (; next < corners.size() && corners[next].first == corners[i].first; ++next) {
      sum += corners[next].second;
    }
    if (sum != 0) return CoverFault{corners[i].first, 1 + sum};
    i = next;
  }
  return std::nullopt;
}

}  // namespace trireme::checkpoint
