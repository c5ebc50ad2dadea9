// A thread that reads micro-batches ahead of the step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/core/tensor.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/packing.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::data {

/// Where a sample's tokens are. The reader must outlive it.
struct Window {
  TokenReader* reader = nullptr;
  std::vector<Piece> pieces;  // one behind the other in the sequence
  /// Each piece is of one document and the sequence may end in padding. Else there is one piece as
  /// long as the sequence.
  bool packed = false;
  std::int64_t begin() const { return pieces.front().begin; }
};
/// By sample number. Called by one thread at a time.
using Windows = std::function<Window(std::int64_t sample)>;
/// Samples of one reader, which must outlive them.
Windows windows_of(TokenReader& reader, const Sampler& sampler);

/// One micro-batch of B sequences of T tokens, in host memory that it owns.
struct Batch {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int32_t> inputs;   // [B, T]
  std::vector<std::int32_t> targets;  // [B, T]: the token after each input
  /// [B, T]: of the dataset, or 1. 0 with a mask for targets in the next document; in packed
  /// sequences for padding, and for a last token whose document ends.
  std::vector<float> weights;
  /// [B, T]: 0 … T−1; with a mask from each document's start, or from 0 for one that begins before
  /// the window. Padding is a document of its own.
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> documents;  // [B, T], or empty: one document
  std::vector<std::int64_t> samples;    // [B]: sample numbers
  std::int64_t padding = 0;             // tokens that fill packed sequences up
};

struct LoaderOptions {
  std::int64_t micro_batch = 1;  // sequences
  std::int64_t length = 0;       // tokens of a sequence
  bool document_mask = false;
  std::int64_t prefetch = 2;  // micro-batches ahead
};

/// Micro-batch m of step s holds samples
/// first_sample + s·global_batch + data_rank·(global_batch / data_size) + m·micro_batch + (0 …
/// micro_batch − 1).
class Loader {
 public:
  Loader(Windows windows, const LoaderOptions& options, std::int64_t global_batch, int data_rank,
         int data_size, std::int64_t first_sample);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();
  /// The next micro-batch; waits for the reading thread and rethrows its errors.
  Batch next();

 private:
  std::vector<std::int64_t> next_samples();
  void run();

  const Windows windows_;
  const LoaderOptions options_;
  const std::int64_t global_batch_;
  std::int64_t slice_ = 0;        // samples of a step that are this rank's
  std::int64_t slice_begin_ = 0;  // their first, in the step
  std::int64_t start_;            // first sample of the step that is read; the thread's
  std::int64_t micro_ = 0;        // its number in the slice; the thread's

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Builds one batch from given sample numbers; what Loader does for each.
Batch make_batch(const Windows& windows, const LoaderOptions& options,
                 const std::vector<std::int64_t>& samples);
Batch make_batch(TokenReader& reader, const Sampler& sampler, const LoaderOptions& options,
                 const std::vector<std::int64_t>& samples);

}  // namespace trireme::data
