// Embedding, rotary positions and dropout.
#include "support.hpp"

namespace trireme::ops {
namespace {

class TokensTest : public OpsTest {};

TEST_P(TokensTest, EmbeddingAddsPositions) {
  Array table = random_array({101, 37}, 1), places = random_array({50, 37}, 2);
  Integers ids = random_integers({70}, 3, 101), positions = random_integers({70}, 4, 50);
  Array plain({70, 37}, 3), with({70, 37}, 3);
  ops->embedding(plain, ids, table);
  ops->embedding(with, ids, table);
  ops->embedding(with, positions, places, {}, Lookup::add);
  for (std::int64_t r = 0; r < 70; ++r) {
    for (std::int64_t c = 0; c < 37; ++c) {
      const float token = table[ids[r] * 37 + c];
      ASSERT_EQ(plain[r * 37 + c], token);
      ASSERT_EQ(with[r * 37 + c], token + places[positions[r] * 37 + c]);
    }
  }
  EXPECT_TRUE(plain.gaps_untouched() && with.gaps_untouched());
}

TEST_P(TokensTest, TilesOfATableMatchTheTable) {
  Array table = random_array({101, 37}, 1), dy = random_array({70, 37}, 2);
  table[0] = -0.0F;
  Integers ids = random_integers({70}, 3, 101);
  ids[5] = 0;
  Array whole({70, 37}), tiles({70, 37}), sum({70, 37}), dwhole({101, 37}), dtiles({101, 37});
  ops->embedding(whole, ids, table);
  ops->embedding_backward(dwhole, ids, dy);
  const std::int64_t bounds[] = {0, 40, 40, 77, 101};  // one tile is empty
  for (int i = 0; i < 4; ++i) {
    const RowTile tile{bounds[i], 101};
    const Tensor part = table.view().slice(0, bounds[i], bounds[i + 1]);
    ops->embedding(tiles, ids, part, tile, i == 0 ? Lookup::write : Lookup::fill_in);
    Array alone({70, 37});
    ops->embedding(alone, ids, part, tile);
    ops->add(sum, sum, alone);
    ops->embedding_backward(dtiles.view().slice(0, bounds[i], bounds[i + 1]), ids, dy, tile);
  }
  expect_same_bits(sum, whole, "sum");
  expect_same_bits(tiles, whole, "filled in");
  expect_same_bits(dtiles, dwhole, "gradient");
}

TEST_P(TokensTest, AnIdOutsideTheTableIsRefused) {
  Array table({5, 4}), y({1, 4});
  Integers ids({1});
  for (const std::int32_t id : {-1, 5}) {
    ids[0] = id;
    EXPECT_ANY_THROW(ops->embedding(y, ids, table));
    EXPECT_ANY_THROW(ops->embedding_backward(table, ids, y));
  }
}

TEST_P(TokensTest, EmbeddingBackwardAddsInRowOrder) {
  Array dtable = random_array({11, 37}, 1), dy = random_array({200, 37}, 2, 1, 2);
  Integers ids = random_integers({200}, 3, 11);
  Array expected = dtable;
  for (std::int64_t r = 0; r < 200; ++r) {
    for (std::int64_t c = 0; c < 37; ++c) expected[ids[r] * 37 + c] += dy[r * 37 + c];
  }
  ops->embedding_backward(dtable, ids, dy);
  expect_same_bits(dtable, expected, "dtable");
}

TEST_P(TokensTest, RotaryAgreesWithFp64AlsoAtLargePositions) {
  const std::int64_t rows = 7, heads = 3, size = 26, pairs = size / 2;
  Integers positions({rows});
  const std::vector<std::int32_t> places = {0, 1, 2, 36, 1000, 131071, 1000000};
  for (std::int64_t r = 0; r < rows; ++r) positions[r] = places[static_cast<std::size_t>(r)];
  Array frequencies({pairs});
  for (std::int64_t i = 0; i < pairs; ++i) {
    frequencies[i] = std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(size));
  }
  Array x = random_array({rows, heads, size}, 1, 1, 5);
  const Array before = x;
  std::vector<double> expected(static_cast<std::size_t>(x.elements()));
  for (std::int64_t i = 0; i < rows * heads * pairs; ++i) {
    const std::int64_t r = i / (heads * pairs), low = i / pairs * size + i % pairs;
    const double angle = double(positions[r]) * double{frequencies[i % pairs]};
    const double a = before[low], b = before[low + pairs];
    expected[static_cast<std::size_t>(low)] = a * std::cos(angle) - b * std::sin(angle);
    expected[static_cast<std::size_t>(low + pairs)] = a * std::sin(angle) + b * std::cos(angle);
  }
  ops->rotary(x, positions, frequencies, false);
  // The angle is rounded to fp32 within ±π (4u at most), sin and cos to 3 ulp (6u), two products
  // each: 16u · (|a| + |b|).
  expect_close(x, expected, std::vector<double>(expected.size(), 32 * roundoff), "rotary");
  ops->rotary(x, positions, frequencies, true);
  // sin and cos are off by at most 10u each, so that cos² + sin² is within 20u of 1.
  expect_close(x, widen(before), std::vector<double>(expected.size(), 40 * roundoff), "and back");
}

TEST_P(TokensTest, DropoutDependsOnlyOnTheIndex) {
  const RandomKey key{0x123456789ABCDEFULL, Purpose::dropout, 5};
  const Dropout dropout{0.3F, key};
  const float kept = 1.0F / (1.0F - 0.3F);
  for (const std::int64_t columns : {1, 3, 4, 37, 300, 1021}) {
    Array x = random_array({5, columns}, 1, 1, 2), y({5, columns}, 1);
    ArrayOf<std::int64_t> rows({5});
    const std::vector<std::int64_t> logical = {0, 3, 1LL << 31, 1LL << 40, 7};
    for (std::int64_t r = 0; r < 5; ++r) rows[r] = logical[static_cast<std::size_t>(r)];
    ops->dropout(y, x, rows, dropout);
    for (std::int64_t i = 0; i < 5 * columns; ++i) {
      const auto index = static_cast<std::uint64_t>(rows[i / columns] * columns + i % columns);
      const bool keep = random_bits(key, index) >= 0.3F * 4294967296.0;
      ASSERT_EQ(y[i], keep ? x[i] * kept : 0.0F) << "columns " << columns << " element " << i;
    }
    EXPECT_TRUE(y.gaps_untouched());
    ops->dropout(x, x, rows, dropout);
    expect_same_bits(x, y, "in place");
  }
}

TEST_P(TokensTest, DropoutRateAndMean) {
  const std::int64_t rows = 100, columns = 1000;
  for (const float rate : {0.1F, 0.5F, 0.9F}) {
    Array x({rows, columns});
    ArrayOf<std::int64_t> logical({rows});
    for (std::int64_t i = 0; i < x.elements(); ++i) x[i] = 1;
    for (std::int64_t i = 0; i < rows; ++i) logical[i] = i;
    ops->dropout(x, x, logical, {rate, {7, Purpose::dropout, 1}});
    double dropped = 0, sum = 0;
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      dropped += x[i] == 0;
      sum += x[i];
    }
    const double n = static_cast<double>(x.elements());
    // Five standard deviations of a binomial share.
    const double deviation = std::sqrt(rate * (1 - rate) / n);
    EXPECT_NEAR(dropped / n, rate, 5 * deviation);
    EXPECT_NEAR(sum / n, 1, 5 * deviation / (1 - rate) + 1e-6);
  }
}

TEST_P(TokensTest, DropoutAtRateZeroCopies) {
  Array x = random_array({3, 5}, 1), y({3, 5});
  ArrayOf<std::int64_t> rows({3});
  ops->dropout(y, x, rows, {});
  expect_same_bits(x, y, "rate 0");
  ops->dropout(y, y, rows, {});
  expect_same_bits(x, y, "in place");
}

TRIREME_FOR_INSTRUCTION_SETS(TokensTest);

}  // namespace
}  // namespace trireme::ops
