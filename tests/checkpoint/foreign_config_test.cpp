// Translation of config.json of transformers models, and refused settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/core/error.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"},
          {"hidden_size", 24},
          {"intermediate_size", 44},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 500000.0},
          {"vocab_size", 256},
          {"tie_word_embeddings", true},
          {"max_position_embeddings", 64}};
}

/// As in Llama 3.2's config.json.
json llama3_scaling() {
  return {{"factor", 32.0},
          {"high_freq_factor", 4.0},
          {"low_freq_factor", 1.0},
          {"original_max_position_embeddings", 8192},
          {"rope_type", "llama3"}};
}

std::string error_of(const json& config) {
  try {
    from_foreign_config(config, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(ForeignConfig, Llama3FrequenciesAndATiedHead) {
  json config = llama();
  config["rope_scaling"] = llama3_scaling();
  const model::ModelConfig ours = from_foreign_config(config, "config.json");
  EXPECT_TRUE(ours.tied);
  EXPECT_EQ(ours.kv_heads, 2);
  EXPECT_EQ(ours.rope_scaling, "llama3");
  EXPECT_EQ(ours.rope_factor, 32);
  EXPECT_EQ(ours.rope_low_frequency_factor, 1);
  EXPECT_EQ(ours.rope_high_frequency_factor, 4);
  EXPECT_EQ(ours.rope_original_sequence, 8192);
  EXPECT_EQ(ours.rope_theta, 500000);
  const json back = to_foreign_config(ours);
  EXPECT_EQ(back.at("rope_scaling"), config.at("rope_scaling"));
  config.erase("rope_scaling");
  for (const auto& [key, value] : config.items()) EXPECT_EQ(back.at(key), value) << key;
}

// transformers 5 keeps theta and scaling in one place.
TEST(ForeignConfig, FrequenciesInTransformers5) {
  json config = llama();
  config.erase("rope_theta");
  config["rope_parameters"] = llama3_scaling();
  config["rope_parameters"]["rope_theta"] = 250000.0;
  const model::ModelConfig ours = from_foreign_config(config, "config.json");
  EXPECT_EQ(ours.rope_scaling, "llama3");
  EXPECT_EQ(ours.rope_theta, 250000);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  const model::ModelConfig plain = from_foreign_config(config, "config.json");
  EXPECT_EQ(plain.rope_scaling, model::ModelConfig().rope_scaling);
  EXPECT_EQ(plain.rope_theta, 20000);
}

TEST(ForeignConfig, UnsupportedSettingsAreRefused) {
  for (const char* type : {"linear", "dynamic", "yarn", "longrope", "su"}) {
    for (const char* key : {"rope_type", "type"}) {
      json config = llama();
      config["rope_scaling"] = {{key, type}, {"factor", 2.0}};
      EXPECT_THAT(
          error_of(config),
          HasSubstr(fmt::format(
              "config.json: rope_scaling: rope_type = \"{}\": only \"llama3\" is computed here",
              type)));
    }
  }
  const auto refused = [](const char* key, const json& value, const std::string& words) {
    json config = llama();
    config[key] = value;
    EXPECT_THAT(error_of(config), HasSubstr(words)) << key;
  };
  refused("attention_bias", true, "attention_bias = true: only false is computed here");
  refused("mlp_bias", true, "mlp_bias = true: only false");
  refused("hidden_act", "gelu", "hidden_act = \"gelu\": only \"silu\"");
  refused("head_dim", 8, "head_dim = 8: only 6");
  refused("tie_word_embeddings", "yes", "tie_word_embeddings = \"yes\": must be true or false");
  json incomplete = llama();
  incomplete["rope_scaling"] = {{"rope_type", "llama3"}};
  EXPECT_THAT(error_of(incomplete), HasSubstr("has no original_max_position_embeddings"));
}

}  // namespace
}  // namespace trireme::checkpoint
