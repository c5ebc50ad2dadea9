// Rows that a thread wants soon, fetched towards its second-level cache a few cache lines at a time
// between other work: rows of one head lie too far apart for the hardware to see them coming.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace trireme::ops {

class Ahead {
 public:
  /// `columns` elements of each of `rows` rows `stride` elements apart; what comes after the eighth
  /// call is left out.
  template <class T>
  void expect(const T* first, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
    if (rows <= 0 || columns <= 0 || end_ == most) return;
    constexpr auto element = static_cast<std::int64_t>(sizeof(T));
    spans_[end_++] = {reinterpret_cast<const char*>(first), stride * element, columns * element,
                      rows};
  }
  /// The next `lines` of them.
  void fetch(std::int64_t lines) {
    while (lines > 0 && next_ < end_) {
      Span& span = spans_[next_];
      const std::int64_t end = std::min(span.bytes, offset_ + lines * line);
      lines -= (end - offset_ + line - 1) / line;
      for (; offset_ < end; offset_ += line) __builtin_prefetch(span.row + offset_, 0, 2);
      if (offset_ < span.bytes) return;
      offset_ = 0;
      span.row += span.stride;
      if (--span.rows == 0) ++next_;
    }
  }

 private:
  static constexpr std::int64_t line = 64;
  static constexpr int most = 8;
  struct Span {
    const char* row;
    std::int64_t stride, bytes, rows;
  };
  Span spans_[most];
  int next_ = 0, end_ = 0;
  std::int64_t offset_ = 0;
};

}  // namespace trireme::ops
