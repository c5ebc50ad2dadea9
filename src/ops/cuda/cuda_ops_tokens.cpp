// Embedding, rotary positions, dropout, losses and updates: checks of shapes, and constants.
#include <algorithm>
#include <cmath>

#include "cuda_ops.hpp"
#include "views.hpp"

namespace trireme::ops {
namespace {

std::int64_t rows_of_all(const RowTile& tile, const Matrix& table) {
  const std::int64_t all = tile.all > 0 ? tile.all : table.rows;
  TRIREME_ASSERT(tile.first >= 0 && tile.first + table.rows <= all, "rows {} + {} of {}",
                 tile.first, table.rows, all);
  return all;
}

Rounding rounding_of(const RoundedCopy& copy, std::int64_t elements) {
  if (!copy.values) return {};
  const Matrix values = row_of(copy.values, elements);
  TRIREME_ASSERT(!copy.stochastic || values.type == Element::bf16, "stochastic rounding to {}",
                 name_of(copy.values.type()));
  return {values.data,
          values.type,
          copy.stochastic,
          copy.key.seed,
          static_cast<std::uint32_t>(copy.key.purpose),
          copy.key.stream,
          copy.indices.first,
          copy.indices.column,
          copy.indices.width,
          copy.indices.skip};
}

}  // namespace

void CudaOps::dropout(const Tensor& y, const Tensor& x, const Tensor& rows,
                      const Dropout& dropout) {
  TRIREME_ASSERT(dropout.rate >= 0 && dropout.rate < 1, "rate {}", dropout.rate);
  const Matrix in = matrix_of(x), out = matrix_like(y, in, "dropout");
  if (dropout.rate == 0) {
    if (y.data() != x.data()) copy(y, x);
    return;
  }
  ops::dropout(out, in, flat<std::int64_t>(rows, in.rows), keep_of(dropout), stream_);
}

void CudaOps::embedding(const Tensor& y, const Tensor& ids, const Tensor& table,
                        const RowTile& tile, Lookup lookup) {
  const Matrix out = matrix_of(y), from = matrix_of(table);
  TRIREME_ASSERT(from.columns == out.columns && from.type == out.type, "table {} and output {}",
                 table.shape().to_string(), y.shape().to_string());
  const LookupMode mode = lookup == Lookup::write     ? LookupMode::write
                          : lookup == Lookup::fill_in ? LookupMode::fill_in
                                                      : LookupMode::add;
  ops::embedding(out, flat<std::int32_t>(ids, out.rows), from, tile.first, rows_of_all(tile, from),
                 mode, stream_);
}

void CudaOps::embedding_backward(const Tensor& dtable, const Tensor& ids, const Tensor& dy,
                                 const RowTile& tile) {
  const Matrix to = matrix_of(dtable), from = matrix_of(dy);
  constexpr std::int64_t most = 0x7fffffff;
  TRIREME_ASSERT(
      to.type == Element::f32 && to.columns == from.columns && to.rows < most && from.rows < most,
      "table {} {} and gradient {}", name_of(dtable.type()), dtable.shape().to_string(),
      dy.shape().to_string());
  void* workspace = scratch(embedding_backward_workspace(from.rows, to.rows));
  ops::embedding_backward(to, flat<std::int32_t>(ids, from.rows), from, tile.first,
                          rows_of_all(tile, to), workspace, stream_);
}

void CudaOps::rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                     bool inverse) {
  TRIREME_ASSERT(x.shape().dimensions() == 3 && x.extent(2) % 2 == 0, "rotary of shape {}",
                 x.shape().to_string());
  const RotaryShape shape{x.extent(0), x.extent(1), x.extent(2) / 2, x.stride(0), x.stride(1)};
  ops::rotary(x.data(), element_of(x.type()), shape, flat<std::int32_t>(positions, shape.rows),
              flat(frequencies, shape.pairs), inverse, stream_);
}

void CudaOps::row_maximum(const Tensor& maximum, const Tensor& logits, bool accumulate) {
  const Matrix x = matrix_of(logits);
  ops::row_maximum(flat(maximum, x.rows), x, accumulate, stream_);
}

void CudaOps::exp_sum_and_target(const Tensor& sum, const Tensor& target_logit,
                                 const Tensor& logits, const Tensor& maximum, const Tensor& targets,
                                 std::int64_t first) {
  const Matrix x = matrix_of(logits);
  ops::exp_sum_and_target(flat(sum, x.rows), flat(target_logit, x.rows), x, flat(maximum, x.rows),
                          flat<std::int32_t>(targets, x.rows), first, stream_);
}

void CudaOps::cross_entropy_gradient(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                     const Tensor& targets, const Tensor& factor,
                                     std::int64_t first) {
  const Matrix x = matrix_of(logits);
  ops::cross_entropy_gradient(x, flat(maximum, x.rows), flat(sum, x.rows),
                              flat<std::int32_t>(targets, x.rows), flat(factor, x.rows), first,
                              stream_);
}

void CudaOps::weighted_loss(const Tensor& total, const Tensor& sum, const Tensor& maximum,
                            const Tensor& target_logit, const Tensor& weights) {
  const std::int64_t rows = sum.elements();
  ops::weighted_loss(flat<double>(total, 1), rows, flat(sum, rows), flat(maximum, rows),
                     flat(target_logit, rows), flat(weights, rows), stream_);
}

void CudaOps::add_squares(const Tensor& sums, const Tensor& x) {
  const std::int64_t elements = x.elements();
  const std::int64_t blocks = (elements + square_block - 1) / square_block;
  const Matrix row = row_of(x, elements);
  auto* to = flat<double>(sums, sums.elements());
  if (sums.elements() == blocks) {
    return add_block_squares(to, row.data, row.type, elements, stream_);
  }
  TRIREME_ASSERT(sums.elements() == 1, "squares of {} into {}", x.shape().to_string(),
                 sums.shape().to_string());
  auto* own = static_cast<double*>(scratch(static_cast<std::size_t>(blocks) * sizeof(double)));
  fill_bits(own, blocks, sizeof(double), 0, stream_);
  add_block_squares(own, row.data, row.type, elements, stream_);
  add_in_order(to, own, blocks, stream_);
}

void CudaOps::round(const RoundedCopy& copy, const Tensor& x) {
  const std::int64_t elements = x.elements();
  if (copy.values) {
    round_copy(flat(x, elements), elements, rounding_of(copy, elements), stream_);
  }
}

void CudaOps::adamw(const Tensor& parameters, const Tensor& moment1, const Tensor& moment2,
                    const Tensor& gradients, const AdamWStep& step, const RoundedCopy& copy) {
  const std::int64_t elements = parameters.elements();
  const AdamWConstants constants{step.beta1,
                                 1.0F - step.beta1,
                                 step.beta2,
                                 1.0F - step.beta2,
                                 1.0F - step.learning_rate * step.weight_decay,
                                 step.learning_rate / step.correction1,
                                 1.0F / std::sqrt(step.correction2),
                                 step.epsilon,
                                 step.gradient_scale};
  ops::adamw(flat(parameters, elements), flat(moment1, elements), flat(moment2, elements),
             flat(gradients, elements), elements, constants, rounding_of(copy, elements), stream_);
}

void CudaOps::sgd(const Tensor& parameters, const Tensor& momentum_buffer, const Tensor& gradients,
                  float learning_rate, float momentum, float weight_decay, float gradient_scale,
                  const RoundedCopy& copy) {
  const std::int64_t elements = parameters.elements();
  ops::sgd(flat(parameters, elements), flat(momentum_buffer, elements), flat(gradients, elements),
           elements, SgdConstants{learning_rate, momentum, weight_decay, gradient_scale},
           rounding_of(copy, elements), stream_);
}

}  // namespace trireme::ops
