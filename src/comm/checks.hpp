// What the arguments of a collective must keep, checked where it is enqueued.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm::checks {

inline void dense(const Tensor& tensor) {
  TRIREME_ASSERT(tensor || tensor.elements() == 0, "absent tensor");
  TRIREME_ASSERT(tensor.contiguous(), "strided tensor {}", tensor.shape().to_string());
}

inline void reducible(const Tensor& tensor) {
  dense(tensor);
  const DType type = tensor.type();
  TRIREME_ASSERT(type == DType::f32 || type == DType::bf16 || type == DType::f16 ||
                     type == DType::f64 || type == DType::i64,
                 "no reduction of {}", name_of(type));
}

inline void same_type(const Tensor& output, const Tensor& input) {
  dense(output);
  dense(input);
  TRIREME_ASSERT(output.type() == input.type(), "{} from {}", name_of(output.type()),
                 name_of(input.type()));
}

/// `part` is apart from `whole`, or exactly the stretch of it that begins at byte `own` (unless
/// negative).
inline void apart_or_own(const Tensor& whole, const Tensor& part, std::int64_t own) {
  const auto* begin = static_cast<const std::byte*>(whole.data());
  const auto* first = static_cast<const std::byte*>(part.data());
  if (whole.bytes() == 0 || part.bytes() == 0 || (own >= 0 && first == begin + own)) return;
  const std::less_equal<> before;
  TRIREME_ASSERT(before(first + part.bytes(), begin) || before(begin + whole.bytes(), first),
                 "input and output overlap elsewhere than at the rank's own place, byte {}", own);
}

/// `whole` is divided by `counts` among the ranks, and `part` is this rank's; the two are apart, or
/// the part lies at its own place.
inline void divided(const Tensor& whole, const Tensor& part, std::span<const std::int64_t> counts,
                    const Communicator& group) {
  TRIREME_ASSERT(static_cast<int>(counts.size()) == group.size(), "{} counts for {} ranks",
                 counts.size(), group.size());
  const auto own = counts.begin() + group.rank();
  TRIREME_ASSERT(std::all_of(counts.begin(), counts.end(), [](auto count) { return count >= 0; }),
                 "a negative count");
  TRIREME_ASSERT(part.elements() == *own, "{} elements, count {}", part.elements(), *own);
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  TRIREME_ASSERT(whole.elements() == all, "{} elements, counts add up to {}", whole.elements(),
                 all);
  const std::int64_t before = std::accumulate(counts.begin(), own, std::int64_t{0});
  apart_or_own(whole, part, before * static_cast<std::int64_t>(size_of(whole.type())));
}

inline void gather(const Tensor& output, const Tensor& input, std::span<const std::int64_t> counts,
                   const Communicator& group) {
  same_type(output, input);
  divided(output, input, counts, group);
}

inline void scatter(const Tensor& output, const Tensor& input, std::span<const std::int64_t> counts,
                    const Communicator& group) {
  same_type(output, input);
  reducible(output);
  divided(input, output, counts, group);
}

inline void all_to_all(const Tensor& output, const Tensor& input, const Communicator& group) {
  same_type(output, input);
  TRIREME_ASSERT(output.elements() == input.elements() && output.elements() % group.size() == 0,
                 "{} from {} by {} ranks", output.elements(), input.elements(), group.size());
  apart_or_own(output, input, -1);
}

inline void peer(int rank, const Communicator& group) {
  TRIREME_ASSERT(rank >= 0 && rank < group.size(), "rank {} of {}", rank, group.size());
}

}  // namespace trireme::comm::checks
