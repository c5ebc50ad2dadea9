// The least traffic of a step against independent closed forms for two ranks of a small model.
#include <gtest/gtest.h>

#include "trireme/model/transformer.hpp"
#include "trireme/train/account.hpp"

namespace trireme::train {
namespace {

using parallel::Place;
using parallel::StageOptions;

model::ModelConfig small_model() {
  model::ModelConfig config;
  config.layers = 4;
  config.width = 16;
  config.heads = config.kv_heads = 2;
  config.vocabulary = 32;
  config.sequence = 8;
  config.tied = false;
  config.resolve();
  return config;
}

std::map<std::string, double> least(const StageOptions& options) {
  const model::Transformer model(small_model());
  return least_traffic(parallel::Stage(model, options));
}

/// Elements of the flat buffer, whose blocks are padded to 64 bytes.
double elements() {
  const model::Transformer model(small_model());
  return static_cast<double>(parallel::Stage(model, {}).layout().elements());
}

TEST(LeastTraffic, OneRankSendsNothing) { EXPECT_TRUE(least({}).empty()); }

// In units of (n−1)/n of 4 bytes per parameter: 2; 2; m + 1; 3m or 2m. Parameters kept gathered
// (the head between forward and backward) lower the last ones slightly.
TEST(LeastTraffic, OfDataRanks) {
  const double unit = 3.0 / 4 * 4 * elements();
  const auto of = [&](int zero, int micro_batches, bool reshard = true) {
    const auto found = least({.place = {.data = 4, .shard = 4},
                              .micro_batches = micro_batches,
                              .zero = zero,
                              .reshard_after_forward = reshard});
    EXPECT_EQ(found.size(), 1U);
    return found.at(zero == 0 ? "data" : "shard") / unit;
  };
  EXPECT_NEAR(of(0, 3), 2, 0.02);
  EXPECT_NEAR(of(1, 3), 2, 0.02);
  EXPECT_NEAR(of(2, 3), 3 + 1, 0.02);
  EXPECT_GT(of(3, 3), 3 * 2);
  EXPECT_LE(of(3, 3), 3 * 3 + 0.02);
  EXPECT_LE(of(3, 3, false), 3 * 2 + 0.02);
}

TEST(LeastTraffic, OfGradientsInBf16IsHalf) {
  const auto of = [](int zero, DType sent, const char* group) {
    return least({.place = {.data = 4, .shard = zero == 0 ? 4 : 2},
                  .zero = zero,
                  .sent_gradients = sent})
        .at(group);
  };
  EXPECT_EQ(of(0, DType::bf16, "data"), of(0, DType::f32, "data") / 2);
  EXPECT_EQ(of(1, DType::bf16, "shard"), of(1, DType::f32, "shard") * 3 / 4);  // and parameters
  EXPECT_EQ(of(1, DType::bf16, "replica"), of(1, DType::f32, "replica") / 2);
}

// 4 all-reduces per layer and 2 at the ends, each 2·(1/2)·b·s·h.
TEST(LeastTraffic, OfTensorRanks) {
  const auto found = least({.place = {.tensor = 2}, .micro_batches = 3, .sequences = 5});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.at("tensor"), 3 * (4 * 4 + 2) * (5 * 8 * 16 * 4));
  const auto narrow =
      least({.place = {.tensor = 2}, .micro_batches = 3, .sequences = 5, .compute = DType::bf16});
  EXPECT_EQ(narrow.at("tensor"), found.at("tensor") / 2);
}

TEST(LeastTraffic, OfPipelineStages) {
  const double message = 5 * 8 * 16 * 4;
  const auto at = [&](int stage) {
    return least({.place = {.pipeline = 2, .stage = stage}, .micro_batches = 3, .sequences = 5});
  };
  EXPECT_EQ(at(0), (std::map<std::string, double>{{"activations", 3 * message}}));
  EXPECT_EQ(at(1), (std::map<std::string, double>{{"gradients", 3 * message}}));
}

}  // namespace
}  // namespace trireme::train
