#include "trireme/parallel/microbatch.hpp"

#include <algorithm>
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

HostMicrobatch::HostMicrobatch(data::Batch taken)
    : contents_(std::make_shared<Contents>(Contents{std::move(taken), {}})) {
  data::Batch& batch = contents_->batch;
  std::vector<std::int64_t>& row_numbers = contents_->rows;
  const std::int64_t sequences = batch.sequences, length = batch.length;
  row_numbers.reserve(batch.samples.size() * static_cast<std::size_t>(length));
  for (std::int64_t sample : batch.samples) {
    for (std::int64_t t = 0; t < length; ++t) row_numbers.push_back(sample * length + t);
  }
  contents_->all_counted =
      std::ranges::all_of(batch.weights, [](float weight) { return weight == 1.0F; });
  const std::int64_t rows = sequences * length;
  view_.sequences = sequences;
  view_.length = length;
  view_.inputs = Tensor(batch.inputs.data(), {rows});
  view_.targets = Tensor(batch.targets.data(), {rows});
  view_.weights = Tensor(batch.weights.data(), {rows});
  view_.positions = Tensor(batch.positions.data(), {sequences, length});
  if (!batch.documents.empty())
    view_.documents = Tensor(batch.documents.data(), {sequences, length});
  view_.samples = Tensor(batch.samples.data(), {sequences});
  view_.rows = Tensor(row_numbers.data(), {rows});
  // Never with a document mask, even where a window is inside one document: the kernel of a
  // sequence must not depend on the others of its micro-batch.
  view_.plain = batch.documents.empty() && counts_from_zero(batch);
}

double HostMicrobatch::weight(int leaf, int count) const {
  const Tensor weights = leaf_of(view_, leaf, count).weights;
  if (contents_->all_counted) return static_cast<double>(weights.elements());
  return std::accumulate(weights.as<float>(), weights.as<float>() + weights.elements(), 0.0);
}

std::vector<HostMicrobatch> blank_batches(int count, std::int64_t sequences, std::int64_t length,
                                          bool documents) {
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
  return {static_cast<std::size_t>(count), HostMicrobatch(std::move(batch))};
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
                             device::MemoryLedger& ledger, bool planned)
    : device_(ledger.device()), planned_(planned), factor_(&host_factor_, {1}) {
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
      if (!planned_) std::memcpy(staging_.data() + offset, tensor.data(), tensor.bytes());
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
