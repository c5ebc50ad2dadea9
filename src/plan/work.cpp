#include "trireme/plan/work.hpp"

#include <algorithm>

#include "trireme/core/error.hpp"

namespace trireme::plan {

namespace {

void describe_attention(Work& work, const Tensor& q, const Tensor& k,
                        const ops::AttentionMask& mask) {
  work.type = q.type();
  work.m = q.extent(1);
  work.n = k.extent(1);
  work.k = q.extent(3);
  work.count = q.extent(0) * q.extent(2);
  work.causal = mask.causal;
}

}  // namespace

OperationName::OperationName(std::string_view text) {
  TRIREME_ASSERT(text.size() <= most, "the name {} is too long", text);
  std::copy(text.begin(), text.end(), text_.begin());
}

namespace detail {

void describe(Work& work, const Tensor& c, const Tensor& a, const Tensor& b,
              const ops::MatmulOptions& options) {
  constexpr std::string_view forms[] = {"matmul_nn", "matmul_nt", "matmul_tn", "matmul_tt"};
  work.name = forms[(options.transpose_a ? 2 : 0) + (options.transpose_b ? 1 : 0)];
  work.kind = Work::Kind::product;
  work.type = a.type();
  work.m = c.extent(0);
  work.n = c.extent(1);
  work.k = a.extent(options.transpose_a ? 0 : 1);
  work.bytes = bytes_of(a) + bytes_of(b) + bytes_of(c) * (options.accumulate ? 2 : 1) +
               bytes_of(options.before_gelu) + bytes_of(options.gelu_input);
}
void describe(Work& work, const Tensor& /*out*/, const Tensor& /*lse*/, const Tensor& q,
              const Tensor& k, const Tensor& /*v*/, const ops::AttentionMask& mask, float,
              const ops::Dropout&, const Tensor&, const ops::HeadSlice&) {
  describe_attention(work, q, k, mask);
  work.kind = Work::Kind::attention;
}
void describe(Work& work, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
              const Tensor&, const Tensor& q, const Tensor& k, const Tensor&,
              const ops::AttentionMask& mask, float, const ops::Dropout&, const Tensor&,
              const ops::HeadSlice&) {
  describe_attention(work, q, k, mask);
  work.kind = Work::Kind::attention_backward;
}
void describe(Work& work, const Tensor& x, const Tensor&, const Tensor&, bool) {
  work.bytes += bytes_of(x);
}
void describe(Work& work, const Tensor& logits, const Tensor&, const Tensor&, const Tensor&,
              const Tensor&, std::int64_t) {
  if (logits.shape().dimensions() != 2) return;  // exp_sum_and_target
  work.bytes += bytes_of(logits);
  work.loss = true;
}
// Of the table only the rows of the tokens.
void describe(Work& work, const Tensor& y, const Tensor& ids, const Tensor&, const ops::RowTile&,
              ops::Lookup) {
  work.bytes = 2 * bytes_of(y) + bytes_of(ids);
}
void describe(Work& work, const Tensor&, const Tensor& ids, const Tensor& dy, const ops::RowTile&) {
  work.bytes = 3 * bytes_of(dy) + bytes_of(ids);
}
void describe(Work& work, const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
              const Tensor& gradients, const ops::AdamWStep&, const ops::RoundedCopy& copy) {
  work.kind = Work::Kind::update;
  work.bytes = 2 * (bytes_of(parameters) + bytes_of(moment1) + bytes_of(moment2)) +
               bytes_of(gradients) + bytes_of(copy.values);
}
void describe(Work& work, const Tensor& parameters, const Tensor& momentum, const Tensor& gradients,
              float, float, float, float, const ops::RoundedCopy& copy) {
  work.kind = Work::Kind::update;
  work.bytes =
      2 * (bytes_of(parameters) + bytes_of(momentum)) + bytes_of(gradients) + bytes_of(copy.values);
}

}  // namespace detail

double Work::visible() const {
  return causal ? 1 - 0.5 * static_cast<double>(std::min(m, n)) / static_cast<double>(n) : 1;
}

double Work::flops() const {
  const double each = 2.0 * static_cast<double>(m) * static_cast<double>(n) *
                      static_cast<double>(k) * static_cast<double>(count);
  switch (kind) {
    case Kind::product:
      return each;
    case Kind::attention:  // q·kᵀ and p·v
      return 2 * each * visible();
    case Kind::attention_backward:  // the scores again, and four products
      return 5 * each * visible();
    case Kind::memory:
    case Kind::update:
      return 0;
  }
  no_case_for(kind);
}

std::string_view name_of(Work::Kind kind) {
  switch (kind) {
    case Work::Kind::product:
      return "products";
    case Work::Kind::attention:
    case Work::Kind::attention_backward:
      return "attention";
    case Work::Kind::memory:
      return "memory-bound operations";
    case Work::Kind::update:
      return "optimizer";
  }
  no_case_for(kind);
}

}  // namespace trireme::plan
