// Elementwise ops, activations, norms, sums over rows.
#include "../../src/ops/cuda/kernels.hpp"
#include "harness.hpp"

namespace trireme::ops {
namespace {

using Tensors = std::vector<Tensor>;

TEST(Elementwise, FillsAnyFloatType) {
  for (const std::int64_t n : {1, 7, 8, 333}) {
    Case("fill").out({n}).within(0).narrow_within(0.01).check(
        [](Ops& ops, const Tensors& t) { ops.fill(t[0], 0.3F); }, {DType::f32});
    Case("fill f64")
        .out({n}, 0, Kind::f64)
        .within(0)
        .check([](Ops& ops, const Tensors& t) { ops.fill(t[0], -2.5F); }, {DType::f32});
  }
}

TEST(Elementwise, FillsNarrowTypes) {
  // The reference fills only fp32; a conversion covers the others.
  Case("fill through copy").out({41}).out({41}, 0, Kind::f32).check([](Ops& ops, const Tensors& t) {
    ops.fill(t[0], 0.375F);
    ops.copy(t[1], t[0]);
  });
}

TEST(Elementwise, CopiesStridedRowsOfAnyWidth) {
  for (const std::int64_t columns : {1, 5, 8, 64, 67}) {
    for (const std::int64_t gap : {0, 1, 8}) {
      Case("copy")
          .in({9, columns}, 1, gap)
          .out({9, columns}, 2 * gap)
          .within(0)
          .narrow_within(0)
          .check([](Ops& ops, const Tensors& t) { ops.copy(t[1], t[0]); });
    }
  }
  Case("copy i64")
      .integers({77}, random_integers(77, 1000), Kind::i64)
      .out({77}, 0, Kind::i64)
      .within(0)
      .check([](Ops& ops, const Tensors& t) { ops.copy(t[1], t[0]); }, {DType::f32});
}

TEST(Elementwise, CopiesBetweenTypes) {
  for (const std::int64_t gap : {0, 3}) {
    Case("widen and narrow")
        .in({5, 43}, 100, gap)
        .out({5, 43}, gap, Kind::f32)
        .in({5, 43}, 1e-3, gap, Kind::f32)
        .out({5, 43}, gap)
        .within(0)
        .check([](Ops& ops, const Tensors& t) {
          ops.copy(t[1], t[0]);
          ops.copy(t[3], t[2]);
        });
  }
}

TEST(Elementwise, AddsAndScales) {
  Case("add").in({3, 171}).in({3, 171}).out({3, 171}).within(0).check(
      [](Ops& ops, const Tensors& t) { ops.add(t[2], t[0], t[1]); });
  Case("add in place").inout({512}).in({512}).within(0).check([](Ops& ops, const Tensors& t) {
    ops.add(t[0], t[0], t[1]);
  });
  Case("scale").inout({1023}).within(0).check(
      [](Ops& ops, const Tensors& t) { ops.scale(t[0], 0.37F); });
  Case("scale by what the device holds")
      .inout({1023})
      .in({1}, 1, 0, Kind::f32)
      .within(0)
      .check([](Ops& ops, const Tensors& t) { ops.scale_by(t[0], t[1]); });
  Case("nothing").inout({0}).check([](Ops& ops, const Tensors& t) { ops.scale(t[0], 2.0F); });
}

TEST(Elementwise, MergesAttention) {
  for (const std::int64_t size : {1, 8, 20}) {
    Case("merge_attention")
        .inout({9, 3, size}, 1, 0, Kind::f32)
        .inout({3, 9}, 20, 0, Kind::f32)
        .in({9, 3, size}, 1, 0, Kind::f32)
        .in({3, 9}, 20, 0, Kind::f32)
        .check([](Ops& ops, const Tensors& t) { ops.merge_attention(t[0], t[1], t[2], t[3]); },
               {DType::f32});
  }
}

TEST(Activation, Gelu) {
  Case("gelu").in({11, 67}, 8).out({11, 67}).check([](Ops& ops, const Tensors& t) {
    ops.gelu(t[1], t[0]);
  });
  Case("gelu_backward")
      .in({11, 67})
      .in({11, 67}, 8)
      .out({11, 67})
      .check([](Ops& ops, const Tensors& t) { ops.gelu_backward(t[2], t[0], t[1]); });
  Case("gelu_backward in place").inout({640}).in({640}, 40).check([](Ops& ops, const Tensors& t) {
    ops.gelu_backward(t[0], t[0], t[1]);
  });
}

TEST(Activation, Swiglu) {
  for (const std::int64_t width : {8, 13, 96}) {
    Case("swiglu").in({5, 2 * width}, 6).out({5, width}).check([](Ops& ops, const Tensors& t) {
      ops.swiglu(t[1], t[0]);
    });
    Case("swiglu_backward")
        .in({5, width})
        .in({5, 2 * width}, 6)
        .out({5, 2 * width})
        .check([](Ops& ops, const Tensors& t) { ops.swiglu_backward(t[2], t[0], t[1]); });
  }
}

struct Rows {
  std::int64_t rows, columns, gap;
};
// One warp, several warps, a row too long to be kept in registers, odd rows and strides.
std::vector<Rows> row_shapes() {
  return {{1, 1, 0},    {7, 13, 0},   {9, 64, 8},    {5, 1001, 3}, {3, 2048, 0},
          {6, 1600, 0}, {2, 4097, 7}, {2, 13001, 1}, {2, 9000, 0}, {0, 16, 0}};
}

TEST(Norm, LayerNorm) {
  for (const Rows& s : row_shapes()) {
    for (const bool bias : {true, false}) {
      Case("layer_norm")
          .in({s.rows, s.columns}, 3, s.gap)
          .in({s.columns})
          .in({s.columns})
          .out({s.rows, s.columns}, s.gap)
          .out({s.rows}, 0, Kind::f32)
          .out({s.rows}, 0, Kind::f32)
          .within(s.columns == 1 ? 1e-3 : 1e-5)  // with one column the result is rounding error
          .check([&](Ops& ops, const Tensors& t) {
            ops.norm(t[3], t[4], t[5], t[0], t[1], bias ? t[2] : Tensor(), 1e-5F);
          });
    }
  }
}

/// Without any difference to add and norm, on each backend.
TEST(Norm, OfASum) {
  for (const Rows& s : row_shapes()) {
    for (const bool centered : {true, false}) {
      for (const std::size_t sum : {0, 1, 7}) {  // in place, or apart
        Case test(centered ? "add_layer_norm" : "add_rms_norm");
        for (int i = 0; i < 3; ++i) test.inout({s.rows, s.columns}, 3);
        test.in({s.columns}).inout({s.rows, s.columns});
        for (int i = 0; i < 2; ++i) test.inout({s.rows}, 1, 0, Kind::f32);
        for (int i = 0; i < 2; ++i) test.inout({s.rows, s.columns});
        for (int i = 0; i < 2; ++i) test.inout({s.rows}, 1, 0, Kind::f32);
        test.within(0).narrow_within(0).check([&](Ops& ops, const Tensors& t) {
          const Tensor bias = centered ? t[3] : Tensor();
          const auto of_one = [&](const Tensor& mean) { return centered ? mean : Tensor(); };
          ops.add(t[2], t[0], t[1]);
          ops.norm(t[4], of_one(t[5]), t[6], t[2], t[3], bias, 1e-5F);
          ops.add_norm(t[8], of_one(t[9]), t[10], t[sum], t[0], t[1], t[3], bias, 1e-5F);
          const auto subtract = [&](std::size_t from, std::size_t other) {
            ops.scale(t[other], -1);
            ops.add(t[from], t[from], t[other]);
            ops.copy(t[other], t[from]);
          };
          subtract(sum, 2);
          subtract(8, 4);
          subtract(10, 6);
          if (centered) subtract(9, 5);
        });
      }
    }
  }
}

TEST(Norm, LayerNormBackward) {
  for (const Rows& s : row_shapes()) {
    if (s.columns == 1) continue;
    for (const int residual : {-1, 5, 9}) {  // none, the result, another tensor
      Case("layer_norm_backward")
          .in({s.rows, s.columns}, 3, s.gap)
          .in({s.columns})
          .in({s.rows, s.columns}, 1, s.gap)
          .in({s.rows}, 1, 0, Kind::f32)
          .in({s.rows}, 1, 0, Kind::f32)
          .inout({s.rows, s.columns}, 1, s.gap)
          .inout({s.columns}, 1, 0, Kind::f32)
          .inout({s.columns}, 1, 0, Kind::f32)
          .inout({s.columns}, 1, 0, Kind::f32)
          .in({s.rows, s.columns}, 1, s.gap)
          .check([&](Ops& ops, const Tensors& t) {
            ops.norm_backward_input(
                t[5], t[2], t[0], t[1], t[3], t[4],
                residual < 0 ? Tensor() : t[static_cast<std::size_t>(residual)]);
            if (residual >= 0) return;  // which the sums do not read; the emulator is slow
            ops.norm_backward_weight(t[6], t[7], t[2], t[0], t[3], t[4]);
            ops.norm_backward_weight(t[8], Tensor(), t[2], t[0], t[3], t[4]);
          });
    }
  }
}

TEST(Norm, RmsNorm) {
  for (const Rows& s : row_shapes()) {
    Case("rms_norm")
        .in({s.rows, s.columns}, 3, s.gap)
        .in({s.columns})
        .in({s.rows, s.columns}, 1, s.gap)
        .in({s.rows}, 1, 0, Kind::f32)
        .out({s.rows, s.columns}, s.gap)
        .out({s.rows}, 0, Kind::f32)
        .out({s.rows, s.columns}, s.gap)
        .inout({s.columns}, 1, 0, Kind::f32)
        .check([&](Ops& ops, const Tensors& t) {
          ops.norm(t[4], {}, t[5], t[0], t[1], {}, 1e-6F);
          ops.norm_backward_input(t[6], t[2], t[0], t[1], {}, t[3], {});
          ops.norm_backward_weight(t[7], {}, t[2], t[0], {}, t[3]);
        });
  }
}

TEST(Norm, BackwardInOnePass) {
  // More rows than blocks have groups, each number of packs per thread, and too many.
  const std::int64_t groups = norm_chunks(1 << 30, 2048);
  for (const Rows& s :
       {Rows{7, 13, 0}, Rows{4 * groups + 6, 24, 8}, Rows{5, 300, 0}, Rows{5, 700, 1},
        Rows{5, 1001, 3}, Rows{groups + 6, 1032, 0}, Rows{3, 2049, 1}, Rows{3, 4096, 0},
        Rows{2, 5000, 0}, Rows{2, 8000, 0}, Rows{2, 8200, 1}, Rows{0, 16, 0}}) {
    for (const int residual : {-1, 5, 8}) {  // none, the result, another tensor
      for (const bool centered : {true, false}) {
        const bool many = s.rows > 10;  // the emulator is slow
        if (many && (residual == 5 || centered == (residual < 0))) continue;
        Case("norm_backward")
            .in({s.rows, s.columns}, 3, s.gap)
            .in({s.columns})
            .in({s.rows, s.columns}, 1, s.gap)
            .in({s.rows}, 1, 0, Kind::f32)
            .in({s.rows}, 1, 0, Kind::f32)
            .inout({s.rows, s.columns}, 1, s.gap)
            .inout({s.columns}, 1, 0, Kind::f32)
            .inout({s.columns}, 1, 0, Kind::f32)
            .in({s.rows, s.columns}, 1, s.gap)
            .check([&](Ops& ops, const Tensors& t) {
              const Tensor beside = residual < 0 ? Tensor() : t[static_cast<std::size_t>(residual)];
              const Tensor dbias = residual == 8 ? Tensor() : t[7];
              if (centered) {
                ops.norm_backward(t[5], t[6], dbias, t[2], t[0], t[1], t[3], t[4], beside);
              } else {
                ops.norm_backward(t[5], t[6], {}, t[2], t[0], t[1], {}, t[4], beside);
              }
            });
      }
    }
  }
}

TEST(Norm, ForwardOfMoreRowsThanGroups) {
  const std::int64_t blocks = norm_blocks(1 << 30);
  for (const Rows& s : {Rows{4 * blocks + 6, 16, 0}, Rows{blocks + 6, 1032, 0}}) {
    Case("layer_norm")
        .in({s.rows, s.columns}, 3)
        .in({s.columns})
        .in({s.columns})
        .out({s.rows, s.columns})
        .out({s.rows}, 0, Kind::f32)
        .out({s.rows}, 0, Kind::f32)
        .check(
            [](Ops& ops, const Tensors& t) { ops.norm(t[3], t[4], t[5], t[0], t[1], t[2], 1e-5F); },
            {DType::bf16});
  }
}

TEST(ColumnSum, OfAnyNumberOfRows) {
  for (const Rows& s : {Rows{1, 5, 0}, Rows{63, 300, 4}, Rows{65, 8, 0}, Rows{777, 33, 1},
                        Rows{333, 264, 0}, Rows{0, 9, 0}}) {
    Case("column_sum")
        .in({s.rows, s.columns}, 1, s.gap)
        .inout({s.columns}, 1, 0, Kind::f32)
        .check([](Ops& ops, const Tensors& t) { ops.column_sum(t[1], t[0]); });
  }
}

}  // namespace
}  // namespace trireme::ops
