// A loaded batch as the units see it.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/model/unit.hpp"

namespace trireme::parallel {

/// Owns a batch and shows it as tensors.
class HostMicrobatch {
 public:
  explicit HostMicrobatch(data::Batch batch);
  const model::Microbatch& view() const { return view_; }
  double weight() const;  // Σ weights

 private:
  data::Batch batch_;
  std::vector<std::int64_t> rows_;
  model::Microbatch view_;
};

}  // namespace trireme::parallel
