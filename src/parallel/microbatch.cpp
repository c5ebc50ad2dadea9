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

double HostMicrobatch::weight() const {
  return std::accumulate(batch_.weights.begin(), batch_.weights.end(), 0.0);
}

}  // namespace trireme::parallel
