#include "trireme/parallel/microbatch.hpp"

#include <numeric>

namespace trireme::parallel {

HostMicrobatch::HostMicrobatch(data::Batch batch) : batch_(std::move(batch)) {
  const std::int64_t sequences = batch_.sequences, length = batch_.length;
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
}

model::Microbatch HostMicrobatch::leaf(int leaf, int count) const {
  TRIREME_ASSERT(view_.sequences % count == 0, "{} leaves of {} sequences", count, view_.sequences);
  const std::int64_t sequences = view_.sequences / count, rows = sequences * view_.length;
  const std::int64_t first = leaf * sequences;
  const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t size) {
    return t ? t.slice(0, begin, begin + size) : Tensor();
  };
  return {.sequences = sequences,
          .length = view_.length,
          .inputs = part(view_.inputs, leaf * rows, rows),
          .targets = part(view_.targets, leaf * rows, rows),
          .weights = part(view_.weights, leaf * rows, rows),
          .positions = part(view_.positions, first, sequences),
          .documents = part(view_.documents, first, sequences),
          .samples = part(view_.samples, first, sequences),
          .rows = part(view_.rows, leaf * rows, rows)};
}

double HostMicrobatch::weight(int leaf, int count) const {
  const Tensor weights = this->leaf(leaf, count).weights;
  return std::accumulate(weights.as<float>(), weights.as<float>() + weights.elements(), 0.0);
}

}  // namespace trireme::parallel
