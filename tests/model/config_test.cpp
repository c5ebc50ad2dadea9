#include "trireme/model/config.hpp"

#include <gtest/gtest.h>

#include "trireme/model/transformer.hpp"

namespace trireme::model {
namespace {

ModelConfig preset(const std::string& name) {
  ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  fields.from_json({{"model", find_preset(name).values}}, config::Source::preset, name);
  if (config.vocabulary == 0) config.vocabulary = 256;
  config.resolve();
  return config;
}

std::int64_t parameters(const std::string& name) {
  return Transformer(preset(name)).table().elements();
}

// Published parameter counts (biases, norms and positions included).
TEST(Presets, HaveTheirPublishedSizes) {
  EXPECT_EQ(parameters("gpt2"), 124'439'808);
  EXPECT_EQ(parameters("gpt2-medium"), 354'823'168);
  EXPECT_EQ(parameters("gpt2-large"), 774'030'080);
  EXPECT_EQ(parameters("gpt2-xl"), 1'557'611'200);
  EXPECT_EQ(parameters("llama-1b"), 1'235'814'400);
  EXPECT_EQ(parameters("llama-7b"), 6'738'415'616);
  EXPECT_EQ(parameters("llama-8b"), 8'030'261'248);
  EXPECT_EQ(parameters("llama-70b"), 70'553'706'496);
}

TEST(Presets, AllResolve) {
  for (const Preset& p : presets()) EXPECT_NO_THROW(preset(p.name)) << p.name;
}

void expect_error(ModelConfig config, const std::string& key) {
  try {
    config.resolve();
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  }
}

TEST(Resolve, RefusesIndivisibleSizes) {
  ModelConfig config;
  config.heads = 7;
  expect_error(config, "model.heads = 7");
  config.heads = 6;
  config.kv_heads = 4;
  expect_error(config, "model.kv_heads = 4");
  config.kv_heads = 6;
  config.width = 18;
  config.position = "rotary";
  expect_error(config, "model.position");
}

// 6·N + 6·L·C·T: a tied head counts once; positions and look-ups do not count.
TEST(Flops, FollowTheDefinition) {
  ModelConfig config;
  config.layers = 2;
  config.width = 8;
  config.heads = 2;
  config.vocabulary = 10;
  config.sequence = 4;
  config.resolve();
  const double block = 12 * 8 * 8;
  EXPECT_DOUBLE_EQ(Transformer(config).flops_per_token(), 6 * (2 * block + 80) + 6.0 * 2 * 8 * 4);
  config.tied = false;
  EXPECT_DOUBLE_EQ(Transformer(config).flops_per_token(), 6 * (2 * block + 80) + 6.0 * 2 * 8 * 4);
}

// jobs/benchmarks/gpt-175b-v1.toml: 72·L·C² + 6·V·C + 6·L·C·T.
TEST(Flops, OfGpt175B) {
  ModelConfig config;
  config.layers = 96;
  config.width = 12288;
  config.heads = 96;
  config.vocabulary = 51200;
  config.sequence = 2048;
  config.resolve();
  EXPECT_EQ(Transformer(config).flops_per_token(), 1061947441152.0);
}

}  // namespace
}  // namespace trireme::model
