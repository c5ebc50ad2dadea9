#include "trireme/data/loader.hpp"

#include <algorithm>
#include <numeric>

#include "trireme/core/error.hpp"

namespace trireme::data {
namespace {

/// Fills one sequence of a batch.
class Row {
 public:
  Row(const LoaderOptions& options, Batch& batch, std::size_t row)
      : options_(options), batch_(batch), row_(row * static_cast<std::size_t>(options.length)) {}

  void fill(const Window& window) {
    for (const Piece& piece : window.pieces) {
      take(*window.reader, piece);
      if (window.packed) {
        separate(*window.reader, piece);
      } else if (options_.document_mask) {
        mark_documents(*window.reader, piece);
      }
      at_ += static_cast<std::size_t>(piece.end - piece.begin);
    }
    pad();
    if (!options_.document_mask) number(0, static_cast<std::size_t>(options_.length));
  }

 private:
  /// Tokens, targets and weights of a piece, whose last target is the token that follows it.
  void take(TokenReader& reader, const Piece& piece) {
    const auto size = static_cast<std::size_t>(piece.end - piece.begin);
    tokens_.resize(std::min(size + 1, static_cast<std::size_t>(reader.tokens() - piece.begin)));
    reader.read(piece.begin, tokens_);
    std::copy_n(tokens_.begin(), size, part(batch_.inputs));
    std::copy(tokens_.begin() + 1, tokens_.end(), part(batch_.targets));
    if (!reader.has_weights()) return;
    weights_.resize(tokens_.size());
    reader.weights(piece.begin, weights_);
    std::transform(weights_.begin() + 1, weights_.end(), part(batch_.weights), number_of);
  }

  /// Positions from each document's start, document numbers, and no weight for a target in the next
  /// document.
  void mark_documents(TokenReader& reader, const Piece& piece) {
    std::size_t begin = 0;  // of the current document, in the piece
    for (const std::int64_t document_end : reader.document_ends(piece.begin, piece.end)) {
      const auto end = static_cast<std::size_t>(document_end - piece.begin);
      mark(begin, end);
      batch_.weights[row_ + at_ + end - 1] = 0;
      begin = end;
    }
    mark(begin, static_cast<std::size_t>(piece.end - piece.begin));
  }
  void mark(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    number(at_ + begin, at_ + end);
    std::fill_n(part(batch_.documents) + begin, end - begin, document_++);
  }

  /// A piece is of one document, whose last token has a target only in the next piece, without a
  /// mask.
  void separate(TokenReader& reader, const Piece& piece) {
    if (at_ > 0 && !options_.document_mask) {
      batch_.targets[row_ + at_ - 1] = tokens_.front();
      batch_.weights[row_ + at_ - 1] = reader.has_weights() ? number_of(weights_.front()) : 1;
    }
    const auto size = static_cast<std::size_t>(piece.end - piece.begin);
    if (options_.document_mask) mark(0, size);
    if (!piece.ends_document) return;
    batch_.targets[row_ + at_ + size - 1] = 0;
    batch_.weights[row_ + at_ + size - 1] = 0;
  }

  void pad() {
    const std::size_t rest = static_cast<std::size_t>(options_.length) - at_;
    std::fill_n(part(batch_.weights), rest, 0.0F);
    if (options_.document_mask) mark(0, rest);
    batch_.padding += static_cast<std::int64_t>(rest);
  }

  void number(std::size_t begin, std::size_t end) {
    const auto positions = batch_.positions.begin() + static_cast<std::ptrdiff_t>(row_);
    std::iota(positions + static_cast<std::ptrdiff_t>(begin),
              positions + static_cast<std::ptrdiff_t>(end), 0);
  }
  /// The present place in the row.
  template <class T>
  T* part(std::vector<T>& values) const {
    return values.data() + row_ + at_;
  }
  static float number_of(std::byte weight) {
    return static_cast<float>(std::to_integer<int>(weight));
  }

  const LoaderOptions& options_;
  Batch& batch_;
  std::size_t row_, at_ = 0;   // where the row begins in the batch, and the next piece in the row
  std::int32_t document_ = 0;  // the next one's number
  std::vector<std::int32_t> tokens_;
  std::vector<std::byte> weights_;
};

}  // namespace

Windows windows_of(TokenReader& reader, const Sampler& sampler) {
  return [&reader, sampler](std::int64_t sample) -> Window {
    const std::int64_t begin = sampler.begin(sample);
    return {&reader, {{begin, begin + sampler.length()}}};
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
  for (std::size_t b = 0; b < samples.size(); ++b) {
    Row(options, batch, b).fill(windows(samples[b]));
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
