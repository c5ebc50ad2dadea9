// How the CPU backend divides work. No sum crosses ranges: threads do not change results.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include <omp.h>

namespace trireme::ops {

/// The first exception inside a parallel region, which none may leave.
class FirstError {
 public:
  template <class Work>
  void guard(const Work& work) {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

/// body(begin, end) over [0, items) on all threads, or on this one if items < 2·grain. Ranges begin
/// at multiples of `align`. Teams of other sizes would make OpenMP restart threads.
template <class Body>
void parallel_ranges(int threads, std::int64_t items, std::int64_t grain, std::int64_t align,
                     const Body& body) {
  if (items <= 0) return;
  if (threads == 1 || items < 2 * grain) {
    body(std::int64_t{0}, items);
    return;
  }
  const std::int64_t units = (items + align - 1) / align;
  FirstError error;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t begin = std::min(items, units * thread / threads * align);
    const std::int64_t end = std::min(items, units * (thread + 1) / threads * align);
    if (begin < end) error.guard([&] { body(begin, end); });
  }
  error.rethrow();
}

/// Row ranges of about 16,384 elements or more per thread.
template <class Body>
void parallel_rows(int threads, std::int64_t rows, std::int64_t columns, const Body& body) {
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, columns));
  parallel_ranges(threads, rows, grain, 1, body);
}

/// Element ranges, divided at cache lines.
template <class Body>
void parallel_elements(int threads, std::int64_t elements, const Body& body) {
  parallel_ranges(threads, elements, 16384, 16, body);
}

/// body(task, thread) for each task. A thread begins with a range of neighboring tasks, the same in
/// every call, so that what it wrote is in its cache; with none left it takes other threads' tasks.
template <class Body>
void parallel_tasks(int threads, std::int64_t tasks, const Body& body) {
  if (threads == 1 || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  struct alignas(64) Next {
    std::atomic<std::int64_t> task;
  };
  const auto first = [&](int thread) { return tasks * thread / threads; };
  std::vector<Next> next(static_cast<std::size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    next[static_cast<std::size_t>(thread)].task = first(thread);
  }
  FirstError error;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    for (int step = 0; step < threads; ++step) {
      const int of = (thread + step) % threads;
      std::atomic<std::int64_t>& queue = next[static_cast<std::size_t>(of)].task;
      const std::int64_t end = first(of + 1);
      for (std::int64_t task = 0; queue < end && (task = queue++) < end;) {
        error.guard([&] { body(task, thread); });
      }
    }
  }
  error.rethrow();
}

/// oneDNN takes the number of threads from OpenMP: sets it for the calling thread in this scope.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace trireme::ops
