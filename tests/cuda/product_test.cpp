// Matrix products: all forms, sizes that tiles do not divide, strides, epilogues, empty sums.
#include "harness.hpp"

namespace trireme::ops {
namespace {

using Tensors = std::vector<Tensor>;

struct Sizes {
  std::int64_t m, n, k, gap;
};
std::vector<Sizes> sizes() {
  std::vector<Sizes> all = {{1, 1, 1, 0},     {3, 5, 7, 1}, {64, 64, 64, 0}, {65, 72, 33, 8},
                            {16, 50, 129, 2}, {5, 9, 0, 0}, {0, 8, 8, 0}};
  if (!is_emulated()) {
    all.push_back({512, 768, 1024, 0});
    all.push_back({513, 1000, 257, 0});
    all.push_back({257, 5003, 64, 5});  // an uneven extent, in rows that are aligned or not
    all.push_back({5003, 64, 257, 5});
    all.push_back({64, 72, 5003, 5});
    all.push_back({64, 72, 5003, 0});
  }
  return all;
}

Shape side(bool transposed, std::int64_t rows, std::int64_t columns) {
  return transposed ? Shape{columns, rows} : Shape{rows, columns};
}

TEST(Product, OfAllForms) {
  for (const Sizes& s : sizes()) {
    for (int form = 0; form < 8; ++form) {
      const bool ta = form & 1, tb = form & 2, accumulate = form & 4;
      Case product("product");
      product.in(side(ta, s.m, s.k), 1, s.gap).in(side(tb, s.k, s.n), 1, s.gap);
      product.inout({s.m, s.n}, 1, s.gap).inout({s.m, s.n}, 1, s.gap, Kind::f32);
      product.check([&](Ops& ops, const Tensors& t) {
        MatmulOptions options;
        options.transpose_a = ta;
        options.transpose_b = tb;
        options.accumulate = accumulate;
        ops.matmul(t[2], t[0], t[1], options);
        ops.matmul(t[3], t[0], t[1], options);
      });
    }
  }
}

TEST(Product, WithBiasAndGelu) {
  for (const Sizes& s : sizes()) {
    for (const bool bias : {true, false}) {
      Case product("product with gelu");
      product.in({s.m, s.k}, 1, s.gap).in({s.n, s.k}, 1, s.gap).in({s.n});
      product.out({s.m, s.n}, s.gap).out({s.m, s.n}, s.gap).out({s.m, s.n}, s.gap);
      product.times_rounding(3);  // the gelu of a small sum is half of it
      // cuBLASLt was seen to round a product to bf16 before it added the bias.
      if (bias) product.sum_of_terms(std::sqrt(static_cast<double>(s.m * s.n)));
      product.check([&](Ops& ops, const Tensors& t) {
        MatmulOptions options;
        options.transpose_b = true;
        if (bias) options.bias = t[2];
        ops.matmul(t[3], t[0], t[1], options);
        options.before_gelu = t[4];
        ops.matmul(t[5], t[0], t[1], options);
      });
    }
  }
}

TEST(Product, WithTheSlopeOfGelu) {
  for (const Sizes& s : sizes()) {
    Case product("product with slope");
    product.in({s.m, s.k}, 1, s.gap).in({s.k, s.n}, 1, s.gap).in({s.m, s.n}, 3, s.gap);
    product.out({s.m, s.n}, s.gap);
    product.check([&](Ops& ops, const Tensors& t) {
      MatmulOptions options;
      options.gelu_input = t[2];
      ops.matmul(t[3], t[0], t[1], options);
    });
  }
}

TEST(Product, WithRowSums) {
  for (const Sizes& s : sizes()) {
    for (const bool accumulate : {false, true}) {
      Case product("product with row sums");
      product.in({s.k, s.m}, 1, s.gap).in({s.k, s.n}, 1, s.gap);
      product.inout({s.m, s.n}, 1, s.gap, Kind::f32).inout({s.m}, 1, 0, Kind::f32);
      product.check([&](Ops& ops, const Tensors& t) {
        MatmulOptions options;
        options.transpose_a = true;
        options.accumulate = accumulate;
        options.row_sum = t[3];
        ops.matmul(t[2], t[0], t[1], options);
      });
    }
  }
}

}  // namespace
}  // namespace trireme::ops
