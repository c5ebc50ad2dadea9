// Selects how a product is computed: by the library in one pass; by the library into fp32 and a
// second pass; or by plain_product, which takes every shape.
#include "cuda_ops.hpp"
#include "views.hpp"

namespace trireme::ops {
namespace {

void check_shapes(const Product& p, const Tensor& c, const Tensor& a, const Tensor& b) {
  const std::int64_t m = p.c.rows, n = p.c.columns, k = p.depth();
  TRIREME_ASSERT((p.transpose_a ? p.a.columns : p.a.rows) == m &&
                     (p.transpose_b ? p.b.columns : p.b.rows) == k &&
                     (p.transpose_b ? p.b.rows : p.b.columns) == n,
                 "product of {}{} and {}{} into {}", a.shape().to_string(),
                 p.transpose_a ? " transposed" : "", b.shape().to_string(),
                 p.transpose_b ? " transposed" : "", c.shape().to_string());
  TRIREME_ASSERT(p.a.type == p.b.type && (p.c.type == p.a.type || p.c.type == Element::f32),
                 "product of {} and {} into {}", name_of(a.type()), name_of(b.type()),
                 name_of(c.type()));
}

/// [m, n] of type `factors`, or an absent matrix.
Matrix aux_of(const Tensor& x, const Matrix& c, Element factors) {
  if (!x) return {};
  Matrix like = c;
  like.type = factors;
  return matrix_like(x, like, "matmul");
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
  Product p;
  p.c = matrix_of(c);
  p.a = matrix_of(a);
  p.b = matrix_of(b);
  p.transpose_a = options.transpose_a;
  p.transpose_b = options.transpose_b;
  p.accumulate = options.accumulate;
  check_shapes(p, c, a, b);
  p.bias = vector_of(options.bias, p.a.type, p.c.columns);
  p.before_gelu = aux_of(options.before_gelu, p.c, p.a.type);
  p.gelu_input = aux_of(options.gelu_input, p.c, p.a.type);
  const bool gelu = p.before_gelu.data != nullptr, slope = p.gelu_input.data != nullptr;
  TRIREME_ASSERT(!(p.accumulate && (p.bias != nullptr || gelu || slope)) && !(gelu && slope),
                 "accumulation into {} together with what wants the whole", c.shape().to_string());
  multiply(p, flat_or_null(options.row_sum, p.c.rows));
}

void CudaOps::multiply(Product p, float* row_sum) {
  if (row_sum != nullptr) {
    if (multiply_with_row_sum(p, row_sum)) return;
    if (p.transpose_a) {
      auto* workspace =
          static_cast<float*>(scratch(column_sum_workspace(p.a.rows, p.a.columns, 1)));
      ops::column_sum(row_sum, p.a, workspace, stream_);
    } else {
      ops::row_sum(row_sum, p.a, stream_);
    }
  }
  if (p.c.rows == 0 || p.c.columns == 0) return;
  const Finish finish{p.a.type, p.bias, p.before_gelu, p.gelu_input, p.accumulate};
  if (p.depth() > 0 && parts_.products != nullptr && multiply_by_library(p, finish)) return;
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
  if (!can_fuse(p)) return false;
  auto* sums = static_cast<float*>(scratch(static_cast<std::size_t>(p.c.rows) * sizeof(float)));
  p.row_sum = sums;
  if (!parts_.products->multiply(p)) return false;
  const Matrix to{row_sum, Element::f32, 1, p.c.rows, p.c.rows};
  ops::add(to, to, Matrix{sums, Element::f32, 1, p.c.rows, p.c.rows}, stream_);
  return true;
}

bool CudaOps::multiply_by_library(const Product& p, const Finish& finish) {
  if (can_fuse(p) && parts_.products->multiply(p)) return true;
  if (finish.bias == nullptr && finish.before_gelu.data == nullptr &&
      finish.gelu_input.data == nullptr) {
    return false;
  }
  Product sums = p;
  sums.bias = nullptr;
  sums.before_gelu = sums.gelu_input = {};
  if (p.c.type != Element::f32) {
    const auto bytes = static_cast<std::size_t>(p.c.rows * p.c.columns) * sizeof(float);
    sums.c = {scratch(bytes), Element::f32, p.c.rows, p.c.columns, p.c.columns};
  }
  if (!parts_.products->multiply(sums)) return false;
  finish_product(p.c, sums.c, finish, stream_);
  return true;
}

}  // namespace trireme::ops
