// What an operation's time depends on, from the arguments of its call.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "trireme/core/tensor.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::plan {

/// Of an operation of ops::Ops, at most 31 bytes, as ranks can send it.
class OperationName {
 public:
  static constexpr std::size_t most = 31;
  OperationName(std::string_view text = {});
  std::string_view text() const { return text_.data(); }
  auto operator<=>(const OperationName&) const = default;  // NOLINT(modernize-use-nullptr)

 private:
  std::array<char, most + 1> text_{};
};

/// What an operation's time depends on. product: a matrix product [m, k]·[k, n]. attention: of
/// `count` heads of all sequences, m queries, n keys, size k of a head. memory: bound by `bytes`.
/// update: an optimizer's, likewise.
struct Work {
  enum class Kind : std::uint8_t { product, attention, attention_backward, memory, update };
  OperationName name;  // as in traces; of a product with its form: matmul_nt has b transposed
  Kind kind = Kind::memory;
  DType type = DType::f32;  // of factors; of what is read first
  std::int64_t m = 0, n = 0, k = 0, count = 1;
  std::int64_t bytes = 0;  // read and written
  bool loss = false;       // memory: the gradient of logits
  bool causal = false;     // attention: queries are the last m of n tokens, keys all of them
  auto key() const { return std::tuple(name, kind, type, m, n, k, count, bytes, loss, causal); }
  bool operator==(const Work&) const = default;
  /// Floating-point operations of a product or attention; else 0.
  double flops() const;
  /// Attention: the part of the scores that the mask leaves.
  double visible() const;
};
std::string_view name_of(Work::Kind kind);

namespace detail {

inline std::int64_t bytes_of(const Tensor& tensor) {
  return tensor ? static_cast<std::int64_t>(tensor.bytes()) : 0;
}
inline std::int64_t bytes_of(const ops::RoundedCopy& copy) { return bytes_of(copy.values); }
template <class Other>
std::int64_t bytes_of(const Other&) {
  return 0;
}

inline DType type_of(const Tensor& tensor) { return tensor.type(); }
inline DType type_of(const ops::RoundedCopy& copy) { return copy.values.type(); }

// By the parameters of operations of ops::Ops; an operation without a case is bound by the memory
// of its tensors, each read or written once.
template <class... Arguments>
void describe(Work&, const Arguments&...) {}
void describe(Work& work, const Tensor& c, const Tensor& a, const Tensor& b,
              const ops::MatmulOptions& options);
void describe(Work& work, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
              const Tensor& v, const ops::AttentionMask& mask, float scale,
              const ops::Dropout& dropout, const Tensor& sinks, const ops::HeadSlice& slice);
void describe(Work& work, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
              const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
              const Tensor& v, const ops::AttentionMask& mask, float scale,
              const ops::Dropout& dropout, const Tensor& sinks, const ops::HeadSlice& slice);
/// rotary and cross_entropy_gradient, in place. exp_sum_and_target has the latter's parameters.
void describe(Work& work, const Tensor& x, const Tensor& positions, const Tensor& frequencies,
              bool inverse);
void describe(Work& work, const Tensor& logits, const Tensor& maximum, const Tensor& sum,
              const Tensor& targets, const Tensor& factor, std::int64_t first);
void describe(Work& work, const Tensor& y, const Tensor& ids, const Tensor& table,
              const ops::RowTile& tile, ops::Lookup lookup);
void describe(Work& work, const Tensor& dtable, const Tensor& ids, const Tensor& dy,
              const ops::RowTile& tile);
void describe(Work& work, const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
              const Tensor& gradients, const ops::AdamWStep& step, const ops::RoundedCopy& copy);
void describe(Work& work, const Tensor& parameters, const Tensor& momentum, const Tensor& gradients,
              float rate, float decay, float momentum_factor, float scale,
              const ops::RoundedCopy& copy);

}  // namespace detail

/// Of a call of an operation of ops::Ops.
template <class First, class... Rest>
Work work_of(std::string_view name, const First& first, const Rest&... rest) {
  Work work{.name = name, .type = detail::type_of(first)};
  work.bytes = detail::bytes_of(first) + (detail::bytes_of(rest) + ... + 0);
  detail::describe(work, first, rest...);
  return work;
}

}  // namespace trireme::plan
