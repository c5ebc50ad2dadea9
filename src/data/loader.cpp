#include "trireme/data/loader.hpp"

#include <algorithm>
#include <numeric>

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

Windows windows_of(TokenReader& reader, const Sampler& sampler) {
  return [&reader, sampler](std::int64_t sample) -> Window {
    return {&reader, sampler.begin(sample)};
  };
}

Batch make_batch(TokenReader& reader, const Sampler& sampler, const LoaderOptions& options,
                 const std::vector<std::int64_t>& samples) {
  return make_batch(windows_of(reader, sampler), options, samples);
}

Batch make_batch(const Windows& windows, const LoaderOptions& options,
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
  std::vector<std::byte> weights(length);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const std::size_t row = b * length;
    const auto [reader, begin] = windows(samples[b]);
    reader->read(begin, window);
    std::copy_n(window.begin(), length, batch.inputs.begin() + static_cast<std::ptrdiff_t>(row));
    std::copy_n(window.begin() + 1, length,
                batch.targets.begin() + static_cast<std::ptrdiff_t>(row));
    if (reader->has_weights()) {
      reader->weights(begin + 1, weights);
      std::ranges::transform(
          weights, batch.weights.begin() + static_cast<std::ptrdiff_t>(row),
          [](std::byte weight) { return static_cast<float>(std::to_integer<int>(weight)); });
    }
    if (options.document_mask) {
      mark_documents(*reader, begin, options.length, batch, row);
    } else {
      const auto first = batch.positions.begin() + static_cast<std::ptrdiff_t>(row);
      std::iota(first, first + options.length, 0);
    }
  }
  return batch;
}

Loader::Loader(Windows windows, const LoaderOptions& options, std::int64_t global_batch,
               int data_rank, int data_size, std::int64_t first_sample)
    : windows_(std::move(windows)),
      options_(options),
      global_batch_(global_batch),
      start_(first_sample) {
  TRIREME_ASSERT(data_size >= 1 && data_rank >= 0 && data_rank < data_size && first_sample >= 0,
                 "data rank {} of {}, sample {}", data_rank, data_size, first_sample);
  TRIREME_ASSERT(options.micro_batch >= 1 && options.length >= 1 && options.prefetch >= 1 &&
                     global_batch >= 1 && global_batch % (data_size * options.micro_batch) == 0,
                 "global batch {}, data size {}, micro-batch {}, length {}, prefetch {}",
                 global_batch, data_size, options.micro_batch, options.length, options.prefetch);
  slice_ = global_batch / data_size;
  slice_begin_ = data_rank * slice_;
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<std::int64_t> Loader::next_samples() {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(options_.micro_batch));
  std::iota(samples.begin(), samples.end(), start_ + slice_begin_ + micro_ * options_.micro_batch);
  if (++micro_ == slice_ / options_.micro_batch) {
    micro_ = 0;
    start_ += global_batch_;
  }
  return samples;
}

void Loader::run() {
  try {
    std::unique_lock guard(mutex_);
    for (;;) {
      changed_.wait(guard, [this] {
        return stopping_ || static_cast<std::int64_t>(ready_.size()) < options_.prefetch;
      });
      if (stopping_) return;
      guard.unlock();
      Batch batch = make_batch(windows_, options_, next_samples());
      guard.lock();
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard guard(mutex_);
      error_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

Batch Loader::next() {
  std::unique_lock guard(mutex_);
  changed_.wait(guard, [this] { return !ready_.empty() || error_ != nullptr; });
  if (ready_.empty()) std::rethrow_exception(error_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  guard.unlock();
  changed_.notify_all();
  return batch;
}

}  // namespace trireme::data
