#include "trireme/data/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

/// Positions from each document's start, document numbers, and no weight for a target in
/// the next document. The window's tokens are [begin, begin + length]; rows hold `length` each.
void mark_documents(TokenReader& reader, std::int64_t begin, std::int64_t length, Batch& batch,
                    std::size_t row) {
  std::int64_t start = 0;  // of the current document, in the window
  std::int32_t document = 0;
  const auto mark_until = [&](std::int64_t end) {
    for (std::int64_t t = start; t < end; ++t) {
      const std::size_t at = row + static_cast<std::size_t>(t);
      batch.positions[at] = static_cast<std::int32_t>(t - start);
      batch.documents[at] = document;
    }
  };
  for (const std::int64_t global_end : reader.document_ends(begin, begin + length)) {
    const std::int64_t end = global_end - begin;
    mark_until(end);
    batch.weights[row + static_cast<std::size_t>(end) - 1] = 0;
    start = end;
    ++document;
  }
  mark_until(length);
}

}  // namespace

Batch make_batch(TokenReader& reader, const Sampler& sampler, const LoaderOptions& options,
                 const std::vector<std::int64_t>& samples) {
  Batch batch;
  batch.sequences = static_cast<std::int64_t>(samples.size());
  batch.length = options.length;
  batch.samples = samples;
  const auto length = static_cast<std::size_t>(options.length);
  const std::size_t size = samples.size() * length;
  batch.inputs.resize(size);
  batch.targets.resize(size);
  batch.weights.assign(size, 1.0F);
  batch.positions.resize(size);
  if (options.document_mask) batch.documents.resize(size);
  std::vector<std::int32_t> window(length + 1);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const std::size_t row = b * length;
    const std::int64_t begin = sampler.begin(samples[b]);
    reader.read(begin, window);
    std::copy_n(window.begin(), length, batch.inputs.begin() + static_cast<std::ptrdiff_t>(row));
    std::copy_n(window.begin() + 1, length,
                batch.targets.begin() + static_cast<std::ptrdiff_t>(row));
    if (options.document_mask) {
      mark_documents(reader, begin, options.length, batch, row);
    } else {
      const auto first = batch.positions.begin() + static_cast<std::ptrdiff_t>(row);
      std::iota(first, first + options.length, 0);
    }
  }
  return batch;
}

struct Loader::Implementation {
  Implementation(std::unique_ptr<TokenReader> source, const Sampler& order,
                 const LoaderOptions& settings, std::int64_t global, int data_rank, int data_size,
                 std::int64_t first)
      : reader(std::move(source)),
        sampler(order),
        options(settings),
        global_batch(global),
        slice(global / data_size),
        slice_begin(data_rank * slice),
        start(first),
        thread([this] { run(); }) {}

  ~Implementation() {
    {
      const std::lock_guard guard(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  std::vector<std::int64_t> next_samples() {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(options.micro_batch));
    std::iota(samples.begin(), samples.end(), start + slice_begin + micro * options.micro_batch);
    if (++micro == slice / options.micro_batch) {
      micro = 0;
      start += global_batch;
    }
    return samples;
  }

  void run() {
    try {
      std::unique_lock guard(mutex);
      for (;;) {
        changed.wait(guard, [this] {
          return stopping || static_cast<std::int64_t>(ready.size()) < options.prefetch;
        });
        if (stopping) return;
        guard.unlock();
        Batch batch = make_batch(*reader, sampler, options, next_samples());
        guard.lock();
        ready.push_back(std::move(batch));
        changed.notify_all();
      }
    } catch (...) {
      {
        const std::lock_guard guard(mutex);
        error = std::current_exception();
      }
      changed.notify_all();
    }
  }

  const std::unique_ptr<TokenReader> reader;
  const Sampler sampler;
  const LoaderOptions options;
  const std::int64_t global_batch;
  const std::int64_t slice;        // samples of a step that are this rank's
  const std::int64_t slice_begin;  // their first, in the step
  std::int64_t start;              // first sample of the step that is read; the thread's
  std::int64_t micro = 0;          // its number in the slice; the thread's

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;
  std::exception_ptr error;
  bool stopping = false;
  std::thread thread;  // last: starts when all else is there
};

Loader::Loader(std::unique_ptr<TokenReader> reader, const Sampler& sampler,
               const LoaderOptions& options, std::int64_t global_batch, int data_rank,
               int data_size, std::int64_t first_sample) {
  TRIREME_ASSERT(data_size >= 1 && data_rank >= 0 && data_rank < data_size && first_sample >= 0,
                 "data rank {} of {}, sample {}", data_rank, data_size, first_sample);
  TRIREME_ASSERT(options.micro_batch >= 1 && options.length >= 1 && options.prefetch >= 1 &&
                     global_batch >= 1 && global_batch % (data_size * options.micro_batch) == 0,
                 "global batch {}, data size {}, micro-batch {}, length {}, prefetch {}",
                 global_batch, data_size, options.micro_batch, options.length, options.prefetch);
  implementation_ = std::make_unique<Implementation>(
      std::move(reader), sampler, options, global_batch, data_rank, data_size, first_sample);
}

Loader::~Loader() = default;

Batch Loader::next() {
  Implementation& self = *implementation_;
  std::unique_lock guard(self.mutex);
  self.changed.wait(guard, [&] { return !self.ready.empty() || self.error != nullptr; });
  if (self.ready.empty()) std::rethrow_exception(self.error);
  Batch batch = std::move(self.ready.front());
  self.ready.pop_front();
  guard.unlock();
  self.changed.notify_all();
  return batch;
}

}  // namespace trireme::data
