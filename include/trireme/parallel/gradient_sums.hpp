// Sums of gradients over data ranks, in fp32 messages or in bf16 ones.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/comm/communicator.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::parallel {

/// Sums of fp32 tensors over `group`. With a `narrow` tensor (bf16, as long as the longest of them)
/// contributions are rounded to bf16, added in fp32, and the sums rounded again, so that all ranks
/// get the same bits; half the bytes are sent. Conversions run on the stream. All sums that share
/// `narrow` are enqueued on one stream, whose order keeps them apart. A group of one rank rounds
/// nothing.
class GradientSums {
 public:
  explicit GradientSums(comm::Communicator& group, const Tensor& narrow = {})
      : group_(group), narrow_(narrow) {}
  /// As Communicator::all_reduce and reduce_scatter_v, of sums.
  device::Event all_reduce(const Tensor& data, device::Stream& stream) const;
  device::Event reduce_scatter_v(const Tensor& output, const Tensor& input,
                                 std::span<const std::int64_t> counts,
                                 device::Stream& stream) const;
  /// Elements of `narrow` for all sums over the data axis of a stage's gradients; 0: none is
  /// needed.
  static std::int64_t narrow_elements(const Stage& stage, std::int64_t bucket_elements);

 private:
  bool rounds() const { return narrow_ && group_.size() > 1; }

  comm::Communicator& group_;
  Tensor narrow_;
};

}  // namespace trireme::parallel
