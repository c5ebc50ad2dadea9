// Software prefetch: how far ahead passes over whole tensors read, and a queue of rows that are
// prefetched into the second-level cache a few lines at a time between other work. Rows of one head
// are too far apart for the hardware prefetcher.
#pragma once

#include <cstdint>

namespace trireme::ops {

/// Bytes between what a pass over memory reads and what it prefetches.
inline constexpr std::int64_t fetch_distance = 2048;

/// Addresses to prefetch: `first`, `first` + `step`, and so on.
struct PrefetchLines {
  const char* first = nullptr;
  std::int64_t step = 0;
};

class PrefetchQueue {
 public:
  /// Adds [rows, columns] elements, rows `stride` apart. Calls after the eighth are ignored.
  template <class T>
  void add(const T* first, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
    if (rows <= 0 || columns <= 0 || end_ == most) return;
    constexpr auto element = static_cast<std::int64_t>(sizeof(T));
    spans_[end_++] = {reinterpret_cast<const char*>(first), stride * element, columns * element,
                      rows};
  }
  /// The next `lines` lines, one per row. Fewer left: the rest is past the rows. None left: step 0.
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
