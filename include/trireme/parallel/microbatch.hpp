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
  // The views point into the vectors, whose storage moves with them but is not shared by a copy.
  HostMicrobatch(HostMicrobatch&&) = default;
  HostMicrobatch& operator=(HostMicrobatch&&) = default;
  HostMicrobatch(const HostMicrobatch&) = delete;
  HostMicrobatch& operator=(const HostMicrobatch&) = delete;
  const model::Microbatch& view() const { return view_; }
  /// Leaf `leaf` of `count` equal ones.
  model::Microbatch leaf(int leaf, int count) const;
  /// Σ weights of a leaf.
  double weight(int leaf = 0, int count = 1) const;

 private:
  data::Batch batch_;
  std::vector<std::int64_t> rows_;
  model::Microbatch view_;
};

}  // namespace trireme::parallel
