// Embedding, rotary positions, dropout, losses, updates.
#include <cmath>

#include "harness.hpp"

namespace trireme::ops {
namespace {

using Tensors = std::vector<Tensor>;

TEST(Embedding, OfTiles) {
  for (const std::int64_t columns : {8, 37}) {
    for (const Lookup lookup : {Lookup::write, Lookup::fill_in, Lookup::add}) {
      Case cut("embedding");
      cut.integers({70}, random_integers(70, 101)).in({40, columns}).inout({70, columns}, 1, 3);
      cut.within(0).check([&](Ops& ops, const Tensors& t) {
        ops.embedding(t[2], t[0], t[1], RowTile{30, 101}, lookup);
      });
    }
  }
}

TEST(Embedding, NegativeZeroBecomesPositive) {
  Case("embedding")
      .integers({2}, {0, 1})
      .given({2, 8}, std::vector<double>(16, -0.0), Kind::compute)
      .out({2, 8})
      .given({2, 8}, std::vector<double>(16, 1.0), Kind::compute)
      .out({2, 8})
      .within(0)
      .check([](Ops& ops, const Tensors& t) {
        ops.embedding(t[2], t[0], t[1]);
        ops.embedding(t[4], t[0], t[3]);
      });
  float y[8];
  const Argument unused;
  device::Device& device = tested_device();
  auto* memory = static_cast<float*>(device.allocate(64 + 64 + 16));
  const float table[8] = {-0.0F, -0.0F, -0.0F, -0.0F, -0.0F, -0.0F, -0.0F, -0.0F};
  device.copy(memory, table, sizeof(table));
  tested_ops().embedding(Tensor(memory + 16, {1, 8}),
                         Tensor(reinterpret_cast<std::int32_t*>(memory + 32), {1}),
                         Tensor(memory, {1, 8}));
  device.copy(y, memory + 16, sizeof(y));
  device.synchronize();
  for (const float value : y) EXPECT_FALSE(std::signbit(value));
  device.release(memory);
}

TEST(EmbeddingBackward, AddsInRowOrder) {
  for (const std::int64_t rows : {0, 1, 3, 200}) {
    for (const std::int64_t columns : {8, 37, 1100}) {
      // 11 rows make long runs; ids of 26 rows are in other tiles too.
      Case("embedding_backward")
          .integers({rows}, random_integers(rows, 26))
          .in({rows, columns}, 1, 2)
          .inout({11, columns}, 1, 0, Kind::f32)
          .within(0)
          .check([](Ops& ops, const Tensors& t) {
            ops.embedding_backward(t[2], t[0], t[1], RowTile{7, 26});
          });
    }
  }
}

TEST(Rotary, AtSmallAndLargePositions) {
  for (const std::int64_t size : {8, 26, 64}) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < size / 2; ++i) {
      frequencies.push_back(static_cast<float>(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(size))));
    }
    for (const bool inverse : {false, true}) {
      Case("rotary")
          .inout({7, 5, size}, 1, 8)
          .integers({7}, {0, 1, 2, 36, 1000, 131071, 1000000})
          .given({size / 2}, frequencies)
          .check([&](Ops& ops, const Tensors& t) { ops.rotary(t[0], t[1], t[2], inverse); });
    }
  }
}

TEST(Dropout, MatchesTheGeneratorBitForBit) {
  for (const std::int64_t columns : {1, 3, 8, 64, 333}) {
    std::vector<double> rows = random_integers(6, 1 << 20);
    rows[0] = 4294967296.0 * 3;  // beyond 32 bits
    const Dropout dropout{0.3F, {test_seed() * 0x9E3779B97F4A7C15U, Purpose::dropout, 7}};
    Case("dropout")
        .in({6, columns})
        .integers({6}, rows, Kind::i64)
        .out({6, columns})
        .within(0)
        .check([&](Ops& ops, const Tensors& t) { ops.dropout(t[2], t[0], t[1], dropout); });
  }
}

TEST(Dropout, OfRateZeroCopies) {
  Case("dropout").in({3, 9}).out({3, 9}).within(0).check(
      [](Ops& ops, const Tensors& t) { ops.dropout(t[1], t[0], Tensor(), Dropout{}); });
}

TEST(Loss, OfAnyVocabulary) {
  for (const std::int64_t vocabulary : {1, 7, 65, 1000, 1037, 5003, 12347}) {
    for (const std::int64_t gap : {0, 5}) {  // 5: aligned rows of 5003 and 12347
      const std::int64_t rows = 5, first = 3;
      std::vector<double> targets = random_integers(rows, vocabulary);
      for (double& target : targets) target += first;
      targets[0] = 1;  // in another tile
      Case("losses")
          .inout({rows, vocabulary}, 10, gap)
          .integers({rows}, targets)
          .in({rows}, 1, 0, Kind::f32)
          .out({rows}, 0, Kind::f32)
          .out({rows}, 0, Kind::f32)
          .out({rows}, 0, Kind::f32)
          .given({1}, {0.25}, Kind::f64, Role::inout)
          .inout({rows}, 40, 0, Kind::f32)
          .narrow_within(2e-2)
          .check([&](Ops& ops, const Tensors& t) {
            ops.row_maximum(t[3], t[0]);
            ops.row_maximum(t[7], t[0], true);
            ops.exp_sum_and_target(t[4], t[5], t[0], t[3], t[1], first);
            ops.weighted_loss(t[6], t[4], t[3], t[5], t[2]);
            ops.cross_entropy_gradient(t[0], t[3], t[4], t[1], t[2], first);
          });
    }
  }
}

TEST(Loss, OfTheWholeVocabularyInOnePass) {
  for (const std::int64_t vocabulary : {1, 7, 65, 1000, 1037, 5003, 12347, 12352}) {
    for (const bool rising : {false, true}) {  // each element is the largest so far
      const std::int64_t rows = 5;
      std::vector<double> logits = random_values(rows * vocabulary);
      for (std::size_t i = 0; rising && i < logits.size(); ++i) {
        logits[i] = static_cast<double>(i % static_cast<std::size_t>(vocabulary)) / 64;
      }
      std::vector<double> targets = random_integers(rows, vocabulary);
      targets[0] = static_cast<double>(vocabulary);  // no column has it
      Case("softmax_statistics")
          .given({rows, vocabulary}, logits, Kind::compute)
          .integers({rows}, targets)
          .out({rows}, 0, Kind::f32)
          .out({rows}, 0, Kind::f32)
          .out({rows}, 0, Kind::f32)
          .narrow_within(2e-2)
          .check([&](Ops& ops, const Tensors& t) {
            ops.softmax_statistics(t[2], t[3], t[4], t[0], t[1]);
          });
    }
  }
}

TEST(Squares, ByBlockAndAltogether) {
  for (const std::int64_t n : {1, 4095, 4096, 4097, 12289, 5000000}) {
    if (is_emulated() && n > 100000) continue;
    const std::int64_t blocks = (n + 4095) / 4096;
    Case("add_squares")
        .in({n})
        .given({blocks}, random_values(blocks), Kind::f64, Role::inout)
        .given({1}, {0.5}, Kind::f64, Role::inout)
        .within(1e-12)
        .check([](Ops& ops, const Tensors& t) {
          ops.add_squares(t[1], t[0]);
          ops.add_squares(t[2], t[0]);
        });
  }
}

TEST(Optimizer, AdamWWithRoundedCopies) {
  AdamWStep step;
  step.learning_rate = 1e-2F;
  step.weight_decay = 0.1F;
  step.correction1 = 0.4F;
  step.correction2 = 0.3F;
  step.gradient_scale = 0.7F;
  for (const std::int64_t n : {1, 77, 4096}) {
    for (const bool stochastic : {false, true}) {
      Case update("adamw");
      update.inout({n}, 1, 0, Kind::f32).inout({n}, 0.1, 0, Kind::f32);
      update.given({n}, random_values(n), Kind::f32, Role::inout).in({n}, 1, 0, Kind::f32);
      update.out({n});
      update.within(1e-6).check([&](Ops& ops, const Tensors& t) {
        RoundedCopy copy{
            t[4], stochastic && t[4].type() == DType::bf16, {7, Purpose::dropout, 2}, {12345}};
        if (t[4].type() == DType::f32) copy = {t[4]};
        ops.adamw(t[0], t[1], t[2], t[3], step, copy);
      });
      Case plain("sgd");
      plain.inout({n}, 1, 0, Kind::f32).inout({n}, 0.1, 0, Kind::f32).in({n}, 1, 0, Kind::f32);
      plain.out({n});
      plain.within(1e-6).check([&](Ops& ops, const Tensors& t) {
        ops.sgd(t[0], t[1], t[2], 0.01F, 0.9F, 0.1F, 0.7F, {t[3]});
      });
    }
  }
}

/// A bf16 copy of masters, by its own operation and by an update that changes nothing.
std::vector<std::uint16_t> stochastic_copies(Ops& ops, device::Device& device,
                                             const std::vector<float>& masters,
                                             const ElementIndices& indices) {
  const auto n = static_cast<std::int64_t>(masters.size());
  const std::size_t bytes = masters.size() * sizeof(float);
  auto* p = static_cast<float*>(device.allocate(bytes));
  auto* zeros = static_cast<float*>(device.allocate(bytes));
  auto* copies = static_cast<std::uint16_t*>(device.allocate(bytes));
  device.copy(p, masters.data(), bytes);
  const auto copy = [&](std::int64_t which) {
    return RoundedCopy{Tensor(copies + which * n, DType::bf16, {n}),
                       true,
                       {test_seed(), Purpose::dropout, 3},
                       indices};
  };
  ops.sgd(Tensor(p, {n}), Tensor(zeros, {n}), Tensor(zeros, {n}), 0.0F, 0.0F, 0.0F, 1.0F, copy(0));
  ops.round(copy(1), Tensor(p, {n}));
  std::vector<std::uint16_t> result(2 * masters.size());
  device.copy(result.data(), copies, bytes);
  device.synchronize();
  for (void* memory :
       {static_cast<void*>(p), static_cast<void*>(zeros), static_cast<void*>(copies)}) {
    device.release(memory);
  }
  return result;
}

TEST(Optimizer, RoundsStochasticallyLikeTheReference) {
  // The same fp32 masters on both sides (no update), hence the same bits of the copy; contiguous,
  // and rows of a larger matrix from the middle of one on, narrower and wider than a pack.
  const std::vector<double> values = random_values(1001);
  const std::vector<float> masters(values.begin(), values.end());
  const std::unique_ptr<Ops> oracle = make_cpu_ops(1);
  std::vector<std::vector<std::uint16_t>> all;
  for (const ElementIndices& indices :
       {ElementIndices{999}, ElementIndices{999, 2, 5, 3}, ElementIndices{1, 99, 100, 1000}}) {
    all.push_back(stochastic_copies(tested_ops(), tested_device(), masters, indices));
    EXPECT_EQ(all.back(), stochastic_copies(*oracle, device::host_device(), masters, indices));
    const auto middle = all.back().begin() + static_cast<std::ptrdiff_t>(masters.size());
    EXPECT_TRUE(std::equal(all.back().begin(), middle, middle));
  }
  EXPECT_NE(all[0], all[1]);
}

}  // namespace
}  // namespace trireme::ops
