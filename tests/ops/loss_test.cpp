#include "support.hpp"

namespace trireme::ops {
namespace {

/// Σ weight·(log Σ exp(logits) − target logit) in fp64.
double loss(const std::vector<double>& logits, std::int64_t columns, const Integers& targets,
            const Array& weights) {
  double total = 0;
  for (std::int64_t r = 0; r < weights.elements(); ++r) {
    const double* row = logits.data() + r * columns;
    double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(row[c] - row[0]);
    total += weights[r] * (std::log(sum) + row[0] - row[targets[r]]);
  }
  return total;
}

class LossTest : public OpsTest {
 protected:
  struct Parts {
    explicit Parts(std::int64_t rows) : maximum({rows}), sum({rows}), target({rows}) {}
    Array maximum, sum, target;
  };
  /// The three operations on vocabulary columns [begin, end), joined as by tensor ranks.
  double sharded(Array& logits, Integers& targets, Array& weights,
                 const std::vector<std::int64_t>& ends) {
    const std::int64_t rows = logits.extent(0);
    Parts all(rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      all.maximum[r] = -std::numeric_limits<float>::infinity();
    }
    const auto for_shards = [&](const auto& body) {
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        body(logits.view().slice(1, begin, end), begin);
        begin = end;
      }
    };
    for_shards([&](const Tensor& shard, std::int64_t) {
      Parts part(rows);
      ops->row_maximum(part.maximum, shard);
      for (std::int64_t r = 0; r < rows; ++r) {
        all.maximum[r] = std::max(all.maximum[r], part.maximum[r]);
      }
    });
    for_shards([&](const Tensor& shard, std::int64_t first) {
      Parts part(rows);
      ops->exp_sum_and_target(part.sum, part.target, shard, all.maximum, targets, first);
      for (std::int64_t r = 0; r < rows; ++r) {
        all.sum[r] += part.sum[r];
        all.target[r] += part.target[r];
      }
    });
    if (ends.size() == 1) {
      Parts whole(rows);
      ops->softmax_statistics(whole.maximum, whole.sum, whole.target, logits, targets);
      if (std::isnan(all.sum[0])) {
        EXPECT_TRUE(std::isnan(whole.sum[0]));
      } else {
        expect_same_bits(whole.maximum, all.maximum, "maximum");
        expect_same_bits(whole.sum, all.sum, "sum");
        expect_same_bits(whole.target, all.target, "target's logit");
      }
    }
    double result = 0;
    ops->weighted_loss(Tensor(&result, {1}), all.sum, all.maximum, all.target, weights);
    for_shards([&](const Tensor& shard, std::int64_t first) {
      ops->cross_entropy_gradient(shard, all.maximum, all.sum, targets, weights, first);
    });
    return result;
  }
};

TEST_P(LossTest, LossAndGradientWholeAndSharded) {
  const std::int64_t rows = 7, columns = 101;
  for (const std::vector<std::int64_t>& ends :
       std::vector<std::vector<std::int64_t>>{{101}, {37, 101}, {1, 2, 2, 50, 101}}) {
    Array logits = random_array({rows, columns}, 1, 8, 3);
    Integers targets = random_integers({rows}, 2, columns);
    Array weights = random_array({rows}, 3);
    weights[2] = 0;
    const double expected = loss(widen(logits), columns, targets, weights);
    std::vector<double> gradient(static_cast<std::size_t>(logits.elements()));
    finite_differences([&](const auto& x) { return loss(x, columns, targets, weights); },
                       widen(logits), 1, [&](std::size_t i, double d) { gradient[i] = d; });
    const double actual = sharded(logits, targets, weights, ends);
    // Each exp's argument is exact to u·16, the sum of 101 positive terms adds 101u at most: the
    // log of the sum is off by 130u, times Σ|w| ≤ 7.
    EXPECT_NEAR(actual, expected, 7 * 130 * roundoff);
    // |factor| ≤ 1, probabilities ≤ 1 with the same relative error; differences: 1e-9.
    expect_close(logits, gradient, std::vector<double>(gradient.size(), 160 * roundoff + 1e-9),
                 "gradient");
  }
}

TEST_P(LossTest, HugeLogitsDoNotOverflow) {
  Array logits({1, 3}), weights({1});
  Integers targets({1});
  logits[0] = 3e38F, logits[1] = -3e38F, logits[2] = 3e38F;
  weights[0] = 1;
  EXPECT_NEAR(sharded(logits, targets, weights, {3}), std::log(2.0), 1e-6);
  EXPECT_EQ(logits[0], -0.5F);
  EXPECT_EQ(logits[1], 0.0F);
  EXPECT_EQ(logits[2], 0.5F);
}

TEST_P(LossTest, ANanAnywhereReachesTheLoss) {
  for (std::int64_t columns = 1; columns < 40; ++columns) {
    for (std::int64_t at = 0; at < columns; ++at) {
      Array logits = random_array({1, columns}, 1), weights({1});
      Integers targets({1});
      weights[0] = 1;
      logits[at] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_TRUE(std::isnan(sharded(logits, targets, weights, {columns}))) << columns << " " << at;
    }
  }
}

TRIREME_FOR_INSTRUCTION_SETS(LossTest);

}  // namespace
}  // namespace trireme::ops
