#include "trireme/parallel/microbatch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace trireme::parallel {

model::Microbatch part_of(const model::Microbatch& batch, int number, int count) {
  TRIREME_ASSERT(batch.sequences % count == 0, "{} parts of {} sequences", count, batch.sequences);
  const std::int64_t sequences = batch.sequences / count, rows = sequences * batch.length;
  const std::int64_t first = number * sequences;
  const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t size) {
    return t ? t.slice(0, begin, begin + size) : Tensor();
  };
  // Of the sequences that the part's pairs of chunks are cut from.
  const auto whole = [&](const Tensor& t) {
    if (!t) return Tensor();
    const std::int64_t pairs = batch.sequences / t.extent(0);
    return part(t, first / pairs, std::max<std::int64_t>(1, sequences / pairs));
  };
  return {.sequences = sequences,
          .length = batch.length,
          .inputs = part(batch.inputs, number * rows, rows),
          .targets = part(batch.targets, number * rows, rows),
          .weights = part(batch.weights, number * rows, rows),
          .positions = part(batch.positions, first, sequences),
          .documents = part(batch.documents, first, sequences),
          .key_positions = whole(batch.key_positions),
          .key_documents = whole(batch.key_documents),
          .samples = part(batch.samples, first, sequences),
          .rows = part(batch.rows, number * rows, rows),
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
    : HostMicrobatch([&] {
        auto contents = std::make_shared<Contents>(Contents{.batch = std::move(taken)});
        const std::int64_t length = contents->batch.length;
        for (const std::int64_t sample : contents->batch.samples) {
          for (std::int64_t t = 0; t < length; ++t) contents->rows.push_back(sample * length + t);
        }
        return contents;
      }()) {}

HostMicrobatch::HostMicrobatch(std::shared_ptr<Contents> contents)
    : contents_(std::move(contents)) {
  data::Batch& batch = contents_->batch;
  const std::int64_t sequences = batch.sequences, length = batch.length;
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
  view_.rows = Tensor(contents_->rows.data(), {rows});
  if (!contents_->key_positions.empty()) {
    const auto keys = static_cast<std::int64_t>(contents_->key_positions.size());
    const std::int64_t whole = contents_->whole_length;
    view_.key_positions = Tensor(contents_->key_positions.data(), {keys / whole, whole});
    if (!contents_->key_documents.empty()) {
      view_.key_documents = Tensor(contents_->key_documents.data(), {keys / whole, whole});
    }
  }
  // Never with a document mask, even where a window is inside one document: the kernel of a
  // sequence must not depend on the others of its micro-batch.
  view_.plain = !view_.key_positions && batch.documents.empty() && counts_from_zero(batch);
}

HostMicrobatch HostMicrobatch::cut(const model::ContextPart& part) const {
  if (!part.cuts()) return *this;
  const data::Batch& whole = contents_->batch;
  const std::int64_t chunk = whole.length / (2 * part.pairs);
  TRIREME_ASSERT(chunk * 2 * part.pairs == whole.length && contents_->key_positions.empty(),
                 "{} pairs of chunks of {} tokens", part.pairs, whole.length);
  auto own = std::make_shared<Contents>();
  own->whole_length = whole.length;
  own->batch.length = 2 * chunk;
  own->batch.sequences = whole.sequences * part.count;
  own->key_positions = whole.positions;
  own->key_documents = whole.documents;
  const auto take = [&](auto& to, const auto& from) {
    if (from.empty()) return;
    for (std::int64_t b = 0; b < whole.sequences; ++b) {
      for (int pair = part.first; pair < part.first + part.count; ++pair) {
        for (const int half : {0, 1}) {
          const auto begin = from.begin() + static_cast<std::ptrdiff_t>(
                                                b * whole.length + part.chunk(pair, half) * chunk);
          to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(chunk));
        }
      }
    }
  };
  take(own->batch.inputs, whole.inputs);
  take(own->batch.targets, whole.targets);
  take(own->batch.weights, whole.weights);
  take(own->batch.positions, whole.positions);
  take(own->batch.documents, whole.documents);
  take(own->rows, contents_->rows);
  for (const std::int64_t sample : whole.samples) {
    own->batch.samples.insert(own->batch.samples.end(), static_cast<std::size_t>(part.count),
                              sample);
  }
  return HostMicrobatch(std::move(own));
}

double HostMicrobatch::weight(int leaf, int count) const {
  const Tensor weights = part_of(view_, leaf, count).weights;
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

std::size_t DeviceBatches::bytes(int count, std::int64_t sequences, std::int64_t length,
                                 const model::ContextPart& part) {
  const std::int64_t all = sequences * length, rows = all / part.ranks();
  const auto padded = [](std::int64_t elements, std::size_t size) {
    return device::aligned(static_cast<std::size_t>(elements) * size);
  };
  // The factor; inputs, targets, weights, positions, documents; those of keys; rows; samples.
  return device::alignment + static_cast<std::size_t>(count) *
                                 (5 * padded(rows, sizeof(std::int32_t)) +
                                  (part.cuts() ? 2 * padded(all, sizeof(std::int32_t)) : 0) +
                                  padded(rows, sizeof(std::int64_t)) +
                                  padded(sequences * part.count, sizeof(std::int64_t)));
}

DeviceBatches::DeviceBatches(int count, std::int64_t sequences, std::int64_t length,
                             const model::ContextPart& part, device::MemoryLedger& ledger,
                             bool planned)
    : device_(ledger.device()), planned_(planned), factor_(&host_factor_, {1}) {
  if (device_.is_host()) return;
  const std::size_t all = bytes(count, sequences, length, part);
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
          &Microbatch::documents, &Microbatch::key_positions, &Microbatch::key_documents,
          &Microbatch::samples, &Microbatch::rows}) {
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
