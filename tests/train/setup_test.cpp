// What a configuration resolves to on a machine.
#include "trireme/train/setup.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/account.hpp"
#include "trireme/train/compute_device.hpp"

namespace trireme::train {
namespace {

using ::testing::HasSubstr;

/// The shard degree of zero.group = `group` on `world` ranks, in nodes of the given sizes.
int shard_on(const std::string& group, int world, const std::vector<int>& nodes, int tensor = 1) {
  LayoutFacts facts{.world = world};
  for (const int size : nodes) {
    facts.node_of.insert(facts.node_of.end(), static_cast<std::size_t>(size),
                         static_cast<int>(facts.node_of.size()));
  }
  RunConfig config;
  config.zero.group = group;
  config.parallel.tensor = tensor;
  return grid_shape(config, facts).shard_size();
}

TEST(ShardRanks, AllIsTheDataDegree) {
  EXPECT_EQ(shard_on("all", 8, {4, 4}), 8);
  EXPECT_EQ(shard_on("all", 8, {4, 4}, 2), 4);
}

TEST(ShardRanks, NodeStaysInsideEveryNode) {
  EXPECT_EQ(shard_on("node", 8, {}), 8);
  EXPECT_EQ(shard_on("node", 8, {8}), 8);
  EXPECT_EQ(shard_on("node", 8, {4, 4}), 4);
  EXPECT_EQ(shard_on("node", 8, {4, 4}, 2), 2);
  EXPECT_EQ(shard_on("node", 8, {4, 4}, 8), 1);
  // Every rank gets the same result, whatever its own node.
  EXPECT_EQ(shard_on("node", 8, {6, 2}), 2);
  EXPECT_EQ(shard_on("node", 12, {6, 6}), 6);
  EXPECT_EQ(shard_on("node", 6, {5, 1}), 1);
}

TEST(ShardRanks, NumbersMustDivideTheDataDegree) {
  EXPECT_EQ(shard_on("2", 8, {4, 4}), 2);
  for (const char* group : {"3", "0", "-1", "16", "nodes", "2x", ""}) {
    EXPECT_THROW(shard_on(group, 8, {4, 4}), ConfigError) << group;
  }
  try {
    shard_on("3", 8, {8});
    ADD_FAILURE() << "no Error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("use 2 or 4"));
  }
}

TEST(Precision, CpusReadMastersRoundedToNearest) {
  const auto reads = [](const std::string& rounding, bool host) {
    RunConfig config;
    config.precision.compute = "bf16";
    config.precision.rounding = rounding;
    config.train.batch = config.train.micro_batch = 1;
    const LayoutFacts facts{.host = host};
    return stage_options(config, grid_shape(config, facts), facts).reads_masters;
  };
  EXPECT_TRUE(reads("nearest", true));
  EXPECT_FALSE(reads("stochastic", true));
  EXPECT_FALSE(reads("nearest", false));
}

TEST(Recompute, AutoIsLowCostOnCpusForWideModelsAndNoneElsewhere) {
  const auto policy = [](const std::string& name, bool host, std::int64_t width = 768) {
    RunConfig config;
    config.model.width = width;
    config.parallel.recompute = name;
    config.train.batch = config.train.micro_batch = 1;
    const LayoutFacts facts{.host = host};
    return stage_options(config, grid_shape(config, facts), facts).recompute;
  };
  using model::Recompute;
  EXPECT_EQ(RunConfig().parallel.recompute, "auto");
  EXPECT_EQ(policy("auto", true), Recompute::cheap);
  EXPECT_EQ(policy("auto", true, 512), Recompute::cheap);
  EXPECT_EQ(policy("auto", true, 511), Recompute::none);
  EXPECT_EQ(policy("auto", false), Recompute::none);
  for (const bool host : {false, true}) {
    EXPECT_EQ(policy("none", host), Recompute::none);
    EXPECT_EQ(policy("cheap", host), Recompute::cheap);
    EXPECT_EQ(policy("selective", host), Recompute::selective);
    EXPECT_EQ(policy("full", host), Recompute::full);
  }
}

TEST(ChooseMicroBatch, DividesTheShareAndHoldsAtMost4096Tokens) {
  EXPECT_EQ(choose_micro_batch(12, 256), 12);
  EXPECT_EQ(choose_micro_batch(12, 512), 6);
  EXPECT_EQ(choose_micro_batch(7, 1024), 1);
  EXPECT_EQ(choose_micro_batch(4, 8192), 1);
}

TEST(Rounding, StochasticIsForBf16Only) {
  parallel::PrecisionConfig precision;
  check_rounding(precision);
  precision.rounding = "stochastic";
  for (const char* type : {"fp32", "fp16"}) {
    precision.compute = type;
    try {
      check_rounding(precision);
      ADD_FAILURE() << "no Error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("precision.rounding = stochastic: rounds weights to bf16, "
                            "and precision.compute = "));
      EXPECT_THAT(error.what(), HasSubstr("use nearest, or precision.compute = bf16"));
    }
  }
  precision.compute = "bf16";
  check_rounding(precision);
}

TEST(Choices, AreRecorded) {
  EXPECT_EQ(nlohmann::json(std::vector<ops::Choice>()).dump(), "[]");
  const nlohmann::json json = std::vector<ops::Choice>{{.rows = 2,
                                                        .columns = 3,
                                                        .depth = 4,
                                                        .factors = "bf16",
                                                        .result = "fp32",
                                                        .form = "TN",
                                                        .accumulates = true,
                                                        .epilogue = "row sums",
                                                        .algorithm = "21, work space 0 bytes",
                                                        .source = "timed"}};
  EXPECT_EQ(json, nlohmann::json::parse(R"([{"rows": 2, "columns": 3, "depth": 4,
      "factors": "bf16", "result": "fp32", "form": "TN", "accumulates": true,
      "epilogue": "row sums", "algorithm": "21, work space 0 bytes", "source": "timed"}])"));
}

TEST(Choices, OfAttentionAreRecordedAndRefusalsGiveAWarning) {
  std::vector<ops::AttentionChoice> choices{{.batch = 4,
                                             .tokens = 1024,
                                             .heads = 25,
                                             .groups = 25,
                                             .size = 64,
                                             .type = "bf16",
                                             .kernel = "eng2_k24=7",
                                             .workspace = 256}};
  EXPECT_EQ(nlohmann::json(choices), nlohmann::json::parse(R"([{"batch": 4, "tokens": 1024,
      "heads": 25, "groups": 25, "size": 64, "type": "bf16", "backward": false,
      "kernel": "eng2_k24=7", "workspace": 256, "refusal": ""}])"));
  EXPECT_EQ(attention_warning(choices), "");
  choices.push_back(choices.front());
  choices.back().backward = true;
  choices.back().refusal = "s_q = 1 is not supported.\nmore of it";
  EXPECT_EQ(attention_warning(choices),
            "attention backward of 4 x 1024 tokens, 25 heads of 64 in bf16: cuDNN does not take it "
            "(s_q = 1 is not supported.); kernels of Trireme's own compute it, more slowly");
}

TEST(Choices, ARefusalOfGraphsOnAnyRankGivesAWarning) {
  const auto account = [](int rank, const std::string& refusal) {
    return nlohmann::json{{"rank", rank},
                          {"graphs", {{"captured", 0}, {"launched", 0}, {"refusal", refusal}}}};
  };
  const nlohmann::json server{{"rank", 9}, {"server", 0}};
  EXPECT_EQ(refusals_warning({server, account(0, ""), account(1, "")}), "");
  EXPECT_EQ(refusals_warning({account(0, ""), server, account(5, "out of memory")}),
            "device.graphs: rank 5: out of memory; it trained without");
}

}  // namespace
}  // namespace trireme::train
