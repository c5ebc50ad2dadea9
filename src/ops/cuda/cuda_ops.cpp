// All operations but products and attention: checks of shapes, and constants.
#include "cuda_ops.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "trireme/core/half.hpp"

namespace trireme::ops {

namespace {

Norm norm_of(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
             const Tensor& rstd) {
  Norm norm;
  norm.x = matrix_of(x);
  TRIREME_ASSERT(norm.x.columns < (std::int64_t{1} << 30), "norm of {}", x.shape().to_string());
  norm.gain = vector_of(gain, norm.x.type, norm.x.columns);
  norm.bias = vector_of(bias, norm.x.type, norm.x.columns);
  norm.mean = flat_or_null(mean, norm.x.rows);
  norm.rstd = flat(rstd, norm.x.rows);
  return norm;
}

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

void* CudaOps::scratch(std::size_t bytes) {
  scratch_.grow(*parts_.ledger, device::Use::workspace, bytes, parts_.device);
  return scratch_.data();
}

void CudaOps::fill(const Tensor& y, float value) {
  TRIREME_ASSERT(y.contiguous(), "fill of a strided {}", y.shape().to_string());
  std::uint64_t bits = 0;
  if (y.type() == DType::f64) {
    bits = std::bit_cast<std::uint64_t>(double{value});
  } else {
    const Element type = element_of(y.type());
    bits = type == Element::f32    ? std::bit_cast<std::uint32_t>(value)
           : type == Element::bf16 ? float_to_bf16(value)
                                   : float_to_fp16(value);
  }
  fill_bits(y.data(), y.elements(), static_cast<int>(size_of(y.type())), bits, stream_);
}

void CudaOps::copy(const Tensor& y, const Tensor& x) {
  TRIREME_ASSERT(y.shape() == x.shape(), "copy of {} into {}", x.shape().to_string(),
                 y.shape().to_string());
  const bool flat = y.contiguous() && x.contiguous();
  TRIREME_ASSERT(flat || y.shape().dimensions() == 2, "strided copy of shape {}",
                 y.shape().to_string());
  const std::int64_t rows = flat ? 1 : y.extent(0), columns = flat ? y.elements() : y.extent(1);
  if (y.type() != x.type()) {
    return ops::convert(
        {y.data(), element_of(y.type()), rows, columns, flat ? columns : y.stride(0)},
        {x.data(), element_of(x.type()), rows, columns, flat ? columns : x.stride(0)}, stream_);
  }
  const auto size = static_cast<std::int64_t>(size_of(y.type()));
  copy_bytes(y.data(), flat ? columns * size : y.stride(0) * size, x.data(),
             flat ? columns * size : x.stride(0) * size, rows, columns * size, stream_);
}

void CudaOps::add(const Tensor& y, const Tensor& a, const Tensor& b) {
  const Matrix to = row_of(y, y.elements()), first = row_of(a, y.elements());
  const Matrix second = row_of(b, y.elements());
  TRIREME_ASSERT(to.type == first.type && to.type == second.type, "add of {} and {} into {}",
                 name_of(a.type()), name_of(b.type()), name_of(y.type()));
  ops::add(to, first, second, stream_);
}

void CudaOps::merge_attention(const Tensor& out, const Tensor& lse, const Tensor& other,
                              const Tensor& other_lse) {
  const std::int64_t tokens = out.extent(0), heads = out.extent(1), size = out.extent(2);
  const auto rows_of = [&](const Tensor& x) {
    TRIREME_ASSERT(x.type() == DType::f32, "merge_attention of {}", name_of(x.type()));
    return matrix_of(x.reshape({tokens * heads, size}));
  };
  ops::merge_attention(rows_of(out), flat(lse, heads * tokens), rows_of(other),
                       flat(other_lse, heads * tokens), heads, stream_);
}

void CudaOps::scale(const Tensor& y, float factor) {
  ops::scale(row_of(y, y.elements()), factor, stream_);
}

void CudaOps::scale_by(const Tensor& y, const Tensor& factor) {
  ops::scale_by(row_of(y, y.elements()), flat(factor, 1), stream_);
}

void CudaOps::column_sum(const Tensor& sum, const Tensor& x) {
  const Matrix in = matrix_of(x);
  auto* workspace = static_cast<float*>(scratch(column_sum_workspace(in.rows, in.columns, 1)));
  ops::column_sum(flat(sum, in.columns), in, workspace, stream_);
}

void CudaOps::norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                   const Tensor& gain, const Tensor& bias, float epsilon) {
  TRIREME_ASSERT(gain && (mean || !bias), "norm without gain, or with a bias and no mean");
  const Norm norm = norm_of(x, gain, bias, mean, rstd);
  norm_forward(matrix_like(y, norm.x, "norm"), norm, epsilon, stream_);
}

void CudaOps::add_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& sum,
                       const Tensor& a, const Tensor& b, const Tensor& gain, const Tensor& bias,
                       float epsilon) {
  TRIREME_ASSERT(gain && (mean || !bias), "add_norm without gain, or with a bias and no mean");
  const Norm norm = norm_of(sum, gain, bias, mean, rstd);
  if (norm.x.columns > largest_held_row) {
    add(sum, a, b);
    return this->norm(y, mean, rstd, sum, gain, bias, epsilon);
  }
  add_norm_forward(matrix_like(y, norm.x, "add_norm"), norm, matrix_like(a, norm.x, "add_norm"),
                   matrix_like(b, norm.x, "add_norm"), epsilon, stream_);
}

void CudaOps::norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                  const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                  const Tensor& residual) {
  TRIREME_ASSERT(static_cast<bool>(gain), "norm_backward_input without gain");
  const Norm norm = norm_of(x, gain, {}, mean, rstd);
  ops::norm_backward(matrix_like(dx, norm.x, "norm_backward_input"),
                     matrix_like(dy, norm.x, "norm_backward_input"), norm,
                     residual ? matrix_like(residual, norm.x, "norm_backward_input") : Matrix(),
                     stream_);
}

void CudaOps::norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                   const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  TRIREME_ASSERT(mean || !dbias, "norm_backward_weight with a bias and no mean");
  const Norm norm = norm_of(x, {}, {}, mean, rstd);
  const Matrix from = matrix_like(dy, norm.x, "norm_backward_weight");
  auto* workspace =
      static_cast<float*>(scratch(column_sum_workspace(from.rows, from.columns, dbias ? 2 : 1)));
  norm_weight_sums(flat(dgain, from.columns), flat_or_null(dbias, from.columns), from, norm,
                   workspace, stream_);
}

void CudaOps::norm_backward(const Tensor& dx, const Tensor& dgain, const Tensor& dbias,
                            const Tensor& dy, const Tensor& x, const Tensor& gain,
                            const Tensor& mean, const Tensor& rstd, const Tensor& residual) {
  TRIREME_ASSERT(gain && (mean || !dbias), "norm_backward without gain, or with dbias and no mean");
  const Norm norm = norm_of(x, gain, {}, mean, rstd);
  const int outputs = dbias ? 2 : 1;
  const Matrix from = matrix_like(dy, norm.x, "norm_backward");
  if (from.columns > largest_held_row) {
    norm_backward_weight(dgain, dbias, dy, x, mean, rstd);
    return norm_backward_input(dx, dy, x, gain, mean, rstd, residual);
  }
  auto* workspace =
      static_cast<float*>(scratch(norm_backward_workspace(from.rows, from.columns, outputs)));
  ops::norm_backward_fused(matrix_like(dx, norm.x, "norm_backward"), flat(dgain, from.columns),
                           flat_or_null(dbias, from.columns), from, norm,
                           residual ? matrix_like(residual, norm.x, "norm_backward") : Matrix(),
                           workspace, stream_);
}

void CudaOps::gelu(const Tensor& y, const Tensor& x) {
  const Matrix to = row_of(y, y.elements());
  ops::gelu(to, matrix_like(x.reshape({y.elements()}), to, "gelu"), stream_);
}

void CudaOps::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  const Shape all{dx.elements()};
  const Matrix to = row_of(dx, dx.elements());
  ops::gelu_backward(to, matrix_like(dy.reshape(all), to, "gelu_backward"),
                     matrix_like(x.reshape(all), to, "gelu_backward"), stream_);
}

void CudaOps::swiglu(const Tensor& y, const Tensor& gate_up) {
  const Matrix to = matrix_of(y), from = matrix_of(gate_up);
  TRIREME_ASSERT(from.rows == to.rows && from.columns == 2 * to.columns && from.type == to.type,
                 "swiglu of {} {} into {}", name_of(gate_up.type()), gate_up.shape().to_string(),
                 y.shape().to_string());
  ops::swiglu(to, from, stream_);
}

void CudaOps::swiglu_backward(const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) {
  const Matrix from = matrix_of(dy), x = matrix_of(gate_up);
  TRIREME_ASSERT(x.rows == from.rows && x.columns == 2 * from.columns && x.type == from.type,
                 "swiglu_backward of {} {} into {}", name_of(dy.type()), dy.shape().to_string(),
                 dgate_up.shape().to_string());
  ops::swiglu_backward(matrix_like(dgate_up, x, "swiglu_backward"), from, x, stream_);
}

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

void CudaOps::softmax_statistics(const Tensor& maximum, const Tensor& sum,
                                 const Tensor& target_logit, const Tensor& logits,
                                 const Tensor& targets) {
  const Matrix x = matrix_of(logits);
  ops::softmax_statistics(flat(maximum, x.rows), flat(sum, x.rows), flat(target_logit, x.rows), x,
                          flat<std::int32_t>(targets, x.rows), stream_);
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
  const auto groups = static_cast<std::size_t>(square_groups(elements));
  ops::add_squares(to, row.data, row.type, elements,
                   static_cast<double*>(scratch(groups * sizeof(double))), stream_);
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
