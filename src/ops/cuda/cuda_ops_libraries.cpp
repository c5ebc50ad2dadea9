// Products and attention: checks of shapes and masks, and the choice between a library and our own
// kernels. A product is computed by the library in one pass; by the library and a second pass; or
// by plain_product, which takes every shape.
#include "trireme/ops/workspace.hpp"

#include "cuda_ops.hpp"

namespace trireme::ops {
namespace {

/// [m, n] of type `factors`, or an absent matrix.
Matrix aux_of(const Tensor& x, const Matrix& c, Element factors) {
  if (!x) return {};
  Matrix like = c;
  like.type = factors;
  return matrix_like(x, like, "matmul");
}

Heads heads_of(const Tensor& x, Element type, const Shape& expected) {
  TRIREME_ASSERT(x.shape() == expected && element_of(x.type()) == type,
                 "attention: {} {} where {} is needed", name_of(x.type()), x.shape().to_string(),
                 expected.to_string());
  return {x.data(), x.stride(0), x.stride(1), x.stride(2)};
}

bool in_steps(const Heads& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data);
  return address % 16 == 0 && x.batch_stride % 8 == 0 && x.stride % 8 == 0 &&
         x.head_stride % 8 == 0;
}

}  // namespace

std::vector<std::byte> CudaOps::choices() const {
  return parts_.products == nullptr ? std::vector<std::byte>() : parts_.products->algorithms();
}

void CudaOps::use_choices(std::span<const std::byte> choices) {
  if (parts_.products != nullptr) parts_.products->use_algorithms(choices);
}

std::vector<Choice> CudaOps::describe_choices() const {
  return parts_.products == nullptr ? std::vector<Choice>()
                                    : parts_.products->describe_algorithms();
}

void CudaOps::matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& options) {
  const auto [m, n, k] = product_shape(c, a, b, options);
  // Units compute leaf by leaf on GPUs (parallel::Stage).
  TRIREME_ASSERT(!parts_.reproducible || options.group_rows == 0 || options.group_rows == m,
                 "{} rows in groups of {}", m, options.group_rows);
  Product p;
  p.c = matrix_of(c);
  p.a = matrix_of(a);
  p.b = matrix_of(b);
  p.transpose_a = options.transpose_a;
  p.transpose_b = options.transpose_b;
  p.accumulate = options.accumulate;
  TRIREME_ASSERT(p.a.type == p.b.type && (p.c.type == p.a.type || p.c.type == Element::f32),
                 "product of {} and {} into {}", name_of(a.type()), name_of(b.type()),
                 name_of(c.type()));
  p.bias = vector_of(options.bias, p.a.type, n);
  p.before_gelu = aux_of(options.before_gelu, p.c, p.a.type);
  p.gelu_input = aux_of(options.gelu_input, p.c, p.a.type);
  multiply(p, flat_or_null(options.row_sum, p.c.rows));
}

void CudaOps::multiply(Product p, float* row_sum) {
  if (row_sum != nullptr) {
    if (multiply_with_row_sum(p, row_sum)) return;
    Product sums;
    sums.a = p.a;
    sums.transpose_a = p.transpose_a;
    sums.row_sum = row_sum;
    apply_epilogue(sums, static_cast<float*>(scratch(epilogue_workspace(sums))), stream_);
  }
  if (p.c.rows == 0 || p.c.columns == 0) return;
  // Not in reproducible mode, where a sum must not depend on the extents of a rank's part.
  if (parts_.products != nullptr && !parts_.reproducible && !parts_.without.split) {
    if (const auto parts = split_uneven(p)) {
      for (const Product& part : *parts) multiply(part, nullptr);
      return;
    }
  }
  if (p.depth() > 0 && parts_.products != nullptr && multiply_by_library(p)) return;
  const Finish finish{p.a.type, p.bias, p.before_gelu, p.gelu_input, p.accumulate};
  plain_product(p.c, p.a, p.b, p.transpose_a, p.transpose_b, finish, stream_);
}

/// The library overwrites its row sums, so they go through the workspace. Not in reproducible mode,
/// where a layer's sums must not depend on how its products are computed.
bool CudaOps::multiply_with_row_sum(Product p, float* row_sum) {
  if (parts_.products == nullptr || parts_.reproducible || p.c.rows == 0 || p.c.columns == 0 ||
      p.depth() == 0) {
    return false;
  }
  p.row_sum = row_sum;  // to ask before workspace is allocated
  if (!can_fuse(p, parts_.without)) return false;
  auto* sums = static_cast<float*>(scratch(static_cast<std::size_t>(p.c.rows) * sizeof(float)));
  p.row_sum = sums;
  if (!parts_.products->multiply(p)) return false;
  const Matrix to{row_sum, Element::f32, 1, p.c.rows, p.c.rows};
  ops::add(to, to, Matrix{sums, Element::f32, 1, p.c.rows, p.c.rows}, stream_);
  return true;
}

bool CudaOps::multiply_by_library(const Product& p) {
  if (can_fuse(p, parts_.without) && parts_.products->multiply(p)) return true;
  const bool gelu = p.before_gelu.data != nullptr || p.gelu_input.data != nullptr;
  if (gelu && p.c.type == p.a.type) {
    if (!multiply_by_library(without_epilogue(p))) return false;
    apply_epilogue(p, nullptr, stream_);
    return true;
  }
  if (p.bias == nullptr && !gelu) return false;
  Product sums = p;
  sums.bias = nullptr;
  sums.before_gelu = sums.gelu_input = {};
  if (p.c.type != Element::f32) {
    const auto bytes = static_cast<std::size_t>(p.c.rows * p.c.columns) * sizeof(float);
    sums.c = {scratch(bytes), Element::f32, p.c.rows, p.c.columns, p.c.columns};
  }
  if (!parts_.products->multiply(sums)) return false;
  finish_product(p.c, sums.c, {p.a.type, p.bias, p.before_gelu, p.gelu_input, p.accumulate},
                 stream_);
  return true;
}

bool can_fuse(const Attention& call) {
  const bool plain = call.causal && call.query_positions == nullptr &&
                     call.key_positions == nullptr && call.query_documents == nullptr &&
                     call.key_documents == nullptr;
  const bool whole_groups =
      call.heads == call.groups * call.share && call.first_head % call.share == 0;
  return call.type != Element::f32 && plain && whole_groups && call.samples == nullptr &&
         cuda_attention_fuses(
             {call.batch, call.queries, call.keys, call.heads, call.groups, call.size}) &&
         in_steps(call.q) && in_steps(call.k) && in_steps(call.v) && in_steps(call.out);
}

bool can_fuse(const Attention& call, const AttentionGradients& gradients) {
  return can_fuse(call) && in_steps(gradients.dout) && in_steps(gradients.dq) &&
         in_steps(gradients.dk) && in_steps(gradients.dv);
}

Attention CudaOps::attention_of(const Tensor& out, const Tensor& lse, const Tensor& q,
                                const Tensor& k, const Tensor& v, const AttentionMask& mask,
                                float scale, const Dropout& dropout, const Tensor& samples,
                                HeadSlice heads) const {
  TRIREME_ASSERT(q.shape().dimensions() == 4 && k.shape().dimensions() == 4, "attention of {}, {}",
                 q.shape().to_string(), k.shape().to_string());
  if (heads.all == 0) heads = {0, q.extent(2), q.extent(2) / k.extent(2)};
  TRIREME_ASSERT(dropout.rate >= 0 && dropout.rate < 1, "rate {}", dropout.rate);
  Attention p;
  p.type = element_of(q.type());
  p.batch = q.extent(0);
  p.queries = q.extent(1);
  p.keys = k.extent(1);
  p.heads = q.extent(2);
  p.groups = k.extent(2);
  p.size = q.extent(3);
  p.first_head = heads.first;
  p.all_heads = heads.all;
  p.share = heads.share;
  p.scale = scale;
  TRIREME_ASSERT(p.heads > 0 && p.share > 0 && p.first_head + p.heads <= p.all_heads &&
                     p.all_heads % p.share == 0 && p.group_of(p.heads - 1) == p.groups - 1,
                 "heads {} + {} of {} over {} groups", p.first_head, p.heads, p.all_heads,
                 p.groups);
  TRIREME_ASSERT(p.size > 0 && p.size <= largest_head, "head size {}", p.size);
  const Shape of_queries{p.batch, p.queries, p.heads, p.size};
  const Shape of_keys{p.batch, p.keys, p.groups, p.size};
  p.q = heads_of(q, p.type, of_queries);
  p.k = heads_of(k, p.type, of_keys);
  p.v = heads_of(v, p.type, of_keys);
  p.out = heads_of(out, p.type, of_queries);
  p.lse = flat(lse, p.batch * p.heads * p.queries);
  TRIREME_ASSERT(!mask.plain || (mask.causal && p.queries == p.keys), "a plain mask of {} by {}",
                 p.queries, p.keys);
  TRIREME_ASSERT(static_cast<bool>(mask.query_documents) == static_cast<bool>(mask.key_documents),
                 "documents of queries and of keys come together");
  p.causal = mask.causal;
  if (mask.causal && !mask.plain) {
    p.query_positions = flat<std::int32_t>(mask.query_positions, p.batch * p.queries);
    p.key_positions = flat<std::int32_t>(mask.key_positions, p.batch * p.keys);
  }
  if (!mask.plain) {
    p.query_documents = flat_or_null<std::int32_t>(mask.query_documents, p.batch * p.queries);
    p.key_documents = flat_or_null<std::int32_t>(mask.key_documents, p.batch * p.keys);
  }
  if (dropout.rate > 0) {
    p.samples = flat<std::int64_t>(samples, p.batch);
    p.keep = keep_of(dropout);
  }
  return p;
}

std::vector<AttentionChoice> CudaOps::describe_attention() const {
  return parts_.attention == nullptr ? std::vector<AttentionChoice>()
                                     : parts_.attention->describe();
}

void CudaOps::attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                        const Tensor& v, const AttentionMask& mask, float scale,
                        const Dropout& dropout, const Tensor& samples, const HeadSlice& heads) {
  const Attention call = attention_of(out, lse, q, k, v, mask, scale, dropout, samples, heads);
  if (parts_.attention != nullptr && can_fuse(call) && parts_.attention->forward(call)) return;
  attention_forward(call, scratch(attention_workspace(call)), stream_);
}

void CudaOps::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                 const Tensor& dout, const Tensor& out, const Tensor& lse,
                                 const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionMask& mask, float scale, const Dropout& dropout,
                                 const Tensor& samples, const HeadSlice& heads) {
  const Attention call = attention_of(out, lse, q, k, v, mask, scale, dropout, samples, heads);
  const Shape of_queries{call.batch, call.queries, call.heads, call.size};
  const Shape of_keys{call.batch, call.keys, call.groups, call.size};
  const AttentionGradients to{heads_of(dout, call.type, of_queries),
                              heads_of(dq, call.type, of_queries), heads_of(dk, call.type, of_keys),
                              heads_of(dv, call.type, of_keys)};
  if (parts_.attention != nullptr && can_fuse(call, to) && parts_.attention->backward(call, to)) {
    return;
  }
  ops::attention_backward(call, to, scratch(attention_backward_workspace(call)), stream_);
}

}  // namespace trireme::ops
