#include "trireme/parallel/microbatch.hpp"

#include <cstring>
#include <numeric>

namespace trireme::parallel {

model::Microbatch leaf_of(const model::Microbatch& batch, int leaf, int count) {
  TRIREME_ASSERT(batch.sequences % count == 0, "{} leaves of {} sequences", count, batch.sequences);
  const std::int64_t sequences = batch.sequences / count, rows = sequences * batch.length;
  const std::int64_t first = leaf * sequences;
  const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t size) {
    return t ? t.slice(0, begin, begin + size) : Tensor();
  };
  return {.sequences = sequences,
          .length = batch.length,
          .inputs = part(batch.inputs, leaf * rows, rows),
          .targets = part(batch.targets, leaf * rows, rows),
          .weights = part(batch.weights, leaf * rows, rows),
          .positions = part(batch.positions, first, sequences),
          .documents = part(batch.documents, first, sequences),
          .samples = part(batch.samples, first, sequences),
          .rows = part(batch.rows, leaf * rows, rows),
          .plain = batch.plain};
}

namespace {

/// Whether positions are 0, 1, … in every sequence. Windows that documents divide have others.
bool counts_from_zero(const data::Batch& batch) {
  const auto length = static_cast<std::size_t>(batch.length);
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    if (batch.positions[i] != static_cast<std::int32_t>(i % length)) return false;
  }
  return true;
}

}  // namespace

HostMicrobatch::HostMicrobatch(data::Batch batch) : batch_(std::move(batch)) {
  const std::int64_t sequences = batch_.sequences, length = batch_.length;
  rows_.reserve(batch_.samples.size() * static_cast<std::size_t>(batch_.length));
  for (std::int64_t sample : batch_.samples) {
    for (std::int64_t t = 0; t < length; ++t) rows_.push_back(sample * length + t);
  }
  const std::int64_t rows = sequences * length;
  view_.sequences = sequences;
  view_.length = length;
  view_.inputs = Tensor(batch_.inputs.data(), {rows});
  view_.targets = Tensor(batch_.targets.data(), {rows});
  view_.weights = Tensor(batch_.weights.data(), {rows});
  view_.positions = Tensor(batch_.positions.data(), {sequences, length});
  if (!batch_.documents.empty())
    view_.documents = Tensor(batch_.documents.data(), {sequences, length});
  view_.samples = Tensor(batch_.samples.data(), {sequences});
  view_.rows = Tensor(rows_.data(), {rows});
  // Never with a document mask, even where a window is inside one document: the kernel of a
  // sequence must not depend on the others of its micro-batch.
  view_.plain = batch_.documents.empty() && counts_from_zero(batch_);
}

double HostMicrobatch::weight(int leaf, int count) const {
  const Tensor weights = leaf_of(view_, leaf, count).weights;
  return std::accumulate(weights.as<float>(), weights.as<float>() + weights.elements(), 0.0);
}

std::vector<HostMicrobatch> blank_batches(int count, std::int64_t sequences, std::int64_t length,
                                          bool documents) {
  std::vector<HostMicrobatch> batches;
  for (int m = 0; m < count; ++m) {
    data::Batch batch{.sequences = sequences, .length = length};
    const auto tokens = static_cast<std::size_t>(sequences * length);
    batch.inputs.resize(tokens);
    batch.targets.resize(tokens);
    batch.weights.assign(tokens, 1.0F);
    if (documents) batch.documents.resize(tokens);
    batch.positions.resize(tokens);
    for (std::size_t at = 0; at < tokens; at += static_cast<std::size_t>(length)) {
      const auto first = batch.positions.begin() + static_cast<std::ptrdiff_t>(at);
      std::iota(first, first + length, 0);
    }
    batch.samples.resize(static_cast<std::size_t>(sequences));
    batches.emplace_back(std::move(batch));
  }
  return batches;
}

std::size_t DeviceBatches::bytes(int count, std::int64_t sequences, std::int64_t length) {
  const std::int64_t rows = sequences * length;
  const auto padded = [](std::int64_t elements, std::size_t size) {
    return device::aligned(static_cast<std::size_t>(elements) * size);
  };
  // The factor; inputs, targets, weights, positions, documents; rows; samples.
  return device::alignment +
         static_cast<std::size_t>(count) *
             (5 * padded(rows, sizeof(std::int32_t)) + padded(rows, sizeof(std::int64_t)) +
              padded(sequences, sizeof(std::int64_t)));
}

DeviceBatches::DeviceBatches(int count, std::int64_t sequences, std::int64_t length,
                             device::MemoryLedger& ledger)
    : device_(ledger.device()), factor_(&host_factor_, {1}) {
  if (device_.is_host()) return;
  const std::size_t all = bytes(count, sequences, length);
  batch_bytes_ = (all - device::alignment) / static_cast<std::size_t>(count);
  buffer_ = device::Buffer(ledger, device::Use::batch, all);
  staging_ = device::Buffer::staging(ledger, device::Use::batch, all);
  factor_ = buffer_.view(DType::f32, {1});
}

void DeviceBatches::take(std::span<const HostMicrobatch> batches, double factor) {
  views_.clear();
  host_factor_ = static_cast<float>(factor);
  if (device_.is_host()) {
    for (const HostMicrobatch& batch : batches) views_.push_back(batch.view());
    return;
  }
  const std::size_t all = device::alignment + batches.size() * batch_bytes_;
  TRIREME_ASSERT(all <= buffer_.bytes(), "{} micro-batches", batches.size());
  std::memcpy(staging_.data(), &host_factor_, sizeof(host_factor_));
  for (std::size_t i = 0; i < batches.size(); ++i) {
    model::Microbatch view = batches[i].view();
    std::size_t offset = device::alignment + i * batch_bytes_;
    const std::size_t end = offset + batch_bytes_;
    using model::Microbatch;
    for (Tensor Microbatch::*member :
         {&Microbatch::inputs, &Microbatch::targets, &Microbatch::weights, &Microbatch::positions,
          &Microbatch::documents, &Microbatch::samples, &Microbatch::rows}) {
      Tensor& tensor = view.*member;
      if (!tensor) continue;
      std::memcpy(staging_.data() + offset, tensor.data(), tensor.bytes());
      const std::size_t size = device::aligned(tensor.bytes());
      TRIREME_ASSERT(offset + size <= end, "a batch of {} tokens", view.tokens());
      tensor = buffer_.view(tensor.type(), tensor.shape(), offset);
      offset += size;
    }
    views_.push_back(view);
  }
  device_.copy(buffer_.data(), staging_.data(), all);
}

}  // namespace trireme::parallel
