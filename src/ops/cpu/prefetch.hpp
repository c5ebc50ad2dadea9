// Rows that a thread wants soon, fetched towards its second-level cache a few cache lines at a time
// between other work: rows of one head lie too far apart for the hardware to see them prefetched.
// And how far ahead passes over whole tensors ask for memory.
#pragma once

#include <cstdint>

namespace trireme::ops {

/// Bytes between what a pass over memory works on and what it asks for: where there is much to
/// compute, loads alone are not far enough ahead, nor is what the hardware foresees.
inline constexpr std::int64_t fetch_distance = 2048;

/// Addresses to be fetched: `first`, `first` + `step`, and so on.
struct PrefetchLines {
  const char* first = nullptr;
  std::int64_t step = 0;
};

class PrefetchQueue {
 public:
  /// `columns` elements of each of `rows` rows `stride` elements apart; what comes after the eighth
  /// call is left out.
  template <class T>
  void add(const T* first, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
    if (rows <= 0 || columns <= 0 || end_ == most) return;
    constexpr auto element = static_cast<std::int64_t>(sizeof(T));
    spans_[end_++] = {reinterpret_cast<const char*>(first), stride * element, columns * element,
                      rows};
  }
  /// The next `lines` of them, one below the other: where fewer are left, the rest lies behind
  /// the rows. None at all: steps of 0.
  PrefetchLines take(std::int64_t lines) {
    if (next_ == end_) return {};
    const Span& span = spans_[next_];
    const PrefetchLines taken{span.first + row_ * span.stride + offset_, span.stride};
    row_ += lines;
    if (row_ < span.rows) return taken;
    row_ = 0;
    offset_ += line;
    if (offset_ < span.bytes) return taken;
    offset_ = 0;
    ++next_;
    return taken;
  }
  void fetch(std::int64_t lines) {
    PrefetchLines at = take(lines);
    if (at.step == 0) return;
    for (; lines > 0; --lines, at.first += at.step) __builtin_prefetch(at.first, 0, 2);
  }

 private:
  static constexpr std::int64_t line = 64;
  static constexpr int most = 8;
  struct Span {
    const char* first;
    std::int64_t stride, bytes, rows;
  };
  Span spans_[most] = {};
  int next_ = 0, end_ = 0;
  std::int64_t row_ = 0, offset_ = 0;
};

}  // namespace trireme::ops
