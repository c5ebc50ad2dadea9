#include "cuda_ops.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "trireme/core/half.hpp"

#include "views.hpp"

namespace trireme::ops {

CudaOps::CudaOps(CudaParts parts, const std::function<void(CudaParts&)>& complete)
    : parts_(std::move(parts)), stream_(parts_.stream) {
  if (parts_.ledger == nullptr) {
    own_ledger_ = std::make_unique<device::MemoryLedger>(*parts_.device);
    parts_.ledger = own_ledger_.get();
  }
  if (complete) complete(parts_);
}

void* CudaOps::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = device::Buffer();  // first: never hold both
    scratch_ = device::Buffer(*parts_.ledger, device::Use::workspace, device::aligned(bytes),
                              *parts_.device);
  }
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

}  // namespace

void CudaOps::norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                   const Tensor& gain, const Tensor& bias, float epsilon) {
  TRIREME_ASSERT(static_cast<bool>(gain), "norm without gain");
  const Norm norm = norm_of(x, gain, bias, mean, rstd);
  norm_forward(matrix_like(y, norm.x, "norm"), norm, epsilon, stream_);
}

void CudaOps::norm_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x,
                                  const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                                  bool accumulate) {
  TRIREME_ASSERT(static_cast<bool>(gain), "norm_backward_input without gain");
  const Norm norm = norm_of(x, gain, {}, mean, rstd);
  norm_backward(matrix_like(dx, norm.x, "norm_backward_input"),
                matrix_like(dy, norm.x, "norm_backward_input"), norm, accumulate, stream_);
}

void CudaOps::norm_backward_weight(const Tensor& dgain, const Tensor& dbias, const Tensor& dy,
                                   const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  const Norm norm = norm_of(x, {}, {}, mean, rstd);
  const Matrix from = matrix_like(dy, norm.x, "norm_backward_weight");
  auto* workspace =
      static_cast<float*>(scratch(column_sum_workspace(from.rows, from.columns, dbias ? 2 : 1)));
  norm_weight_sums(flat(dgain, from.columns), flat_or_null(dbias, from.columns), from, norm,
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

}  // namespace trireme::ops
