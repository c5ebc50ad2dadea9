#include "trireme/model/config.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "trireme/core/error.hpp"

namespace trireme::model {

void ModelConfig::declare(config::Fields& fields) {
  using namespace config;
  std::vector<std::string> names{""};
  for (const Preset& preset : presets()) names.push_back(preset.name);
  fields.add("preset", preset, "named model whose values are the defaults; see `trireme presets`",
             one_of(names));
  fields.add("layers", layers, "transformer blocks", at_least(1));
  fields.add("width", width, "channels C of the residual stream", at_least(2));
  fields.add("heads", heads, "query heads; must divide width", at_least(1));
  fields.add("kv_heads", kv_heads, "key/value heads; 0: as many as heads", at_least(0));
  fields.add("hidden", hidden, "MLP width; 0: 4 C (gelu) or 8/3 C rounded up to 64 (swiglu)",
             at_least(0));
  fields.add("vocabulary", vocabulary, "token ids; 0: the dataset's", at_least(0));
  fields.add("sequence", sequence, "tokens of a sequence", at_least(1));
  fields.add("positions", positions,
             "longest sequence that the weights are for, of a model trained before on longer ones; "
             "0: sequence",
             at_least(0));
  fields.add("norm", norm, "normalization", one_of({"layernorm", "rmsnorm"}));
  fields.add("epsilon", epsilon, "added to the variance in norms", positive());
  fields.add("position", position, "how positions enter", one_of({"learned", "rotary"}));
  fields.add("rope_theta", rope_theta, "rotary: base of the wavelengths", positive());
  fields.add("rope_scaling", rope_scaling, "rotary: stretching of long wavelengths",
             one_of({"none", "llama3"}));
  fields.add("rope_factor", rope_factor, "llama3 scaling: factor for long wavelengths", positive());
  fields.add("rope_low_frequency_factor", rope_low_frequency_factor,
             "llama3 scaling: wavelengths above original / this are stretched in full", positive());
  fields.add("rope_high_frequency_factor", rope_high_frequency_factor,
             "llama3 scaling: wavelengths below original / this are kept", positive());
  fields.add("rope_original_sequence", rope_original_sequence,
             "llama3 scaling: sequence length before stretching", at_least(1));
  fields.add("activation", activation, "MLP activation", one_of({"gelu", "swiglu"}));
  fields.add("bias", bias, "biases in linear layers and layer norms");
  fields.add("tied", tied, "the head uses the token embedding's matrix");
  fields.add("dropout", dropout, "rate after the embedding and before each residual sum",
             below(0, 1));
  fields.add("attention_dropout", attention_dropout, "rate on attention probabilities",
             below(0, 1));
  fields.add("init_deviation", init_deviation, "standard deviation of initial weights", positive());
  fields.add("scaled_residual", scaled_residual,
             "initial deviation of residual projections divided by √(2·layers), as GPT-2 does");
}

void ModelConfig::resolve() {
  // Products of these must stay below 2^63, and the list of layers within memory.
  constexpr std::int64_t most_layers = 4096, most = std::int64_t{1} << 24;
  constexpr std::int64_t most_rotary = 1024;  // head size
  for (const auto& [key, value, bound] :
       {std::tuple{"layers", layers, most_layers}, std::tuple{"width", width, most},
        std::tuple{"heads", heads, most}, std::tuple{"kv_heads", kv_heads, most},
        std::tuple{"hidden", hidden, most}, std::tuple{"vocabulary", vocabulary, most},
        std::tuple{"sequence", sequence, most}, std::tuple{"positions", positions, most}}) {
    if (value > bound) {
      throw ConfigError(std::string("model.") + key, std::to_string(value),
                        fmt::format("must be at most {}", bound), "use a smaller model");
    }
  }
  if (width % heads != 0) {
    std::int64_t below = std::min(heads, width), above = below;
    while (width % below != 0) --below;
    while (width % above != 0) ++above;
    throw ConfigError("model.heads", std::to_string(heads),
                      fmt::format("must divide model.width = {}", width),
                      below == above ? fmt::format("use at most {}", below)
                                     : fmt::format("nearest that do: {} and {}", below, above));
  }
  if (kv_heads == 0) kv_heads = heads;
  if (heads % kv_heads != 0) {
    std::int64_t below = std::min(kv_heads, heads);
    while (heads % below != 0) --below;
    throw ConfigError("model.kv_heads", std::to_string(kv_heads),
                      fmt::format("must divide model.heads = {}", heads),
                      fmt::format("use {}", below));
  }
  if (rotary() && head_size() % 2 != 0) {
    throw ConfigError(
        "model.position", position,
        fmt::format("rotary positions need an even head size, and width / heads = {}", head_size()),
        "change model.heads or use position = learned");
  }
  if (rotary() && head_size() > most_rotary) {
    throw ConfigError("model.position", position,
                      fmt::format("rotary positions need a head size of at most {}, and width / "
                                  "heads = {}",
                                  most_rotary, head_size()),
                      "use more model.heads");
  }
  if (stretches_rotary() && rope_high_frequency_factor <= rope_low_frequency_factor) {
    throw ConfigError("model.rope_high_frequency_factor",
                      config::to_string(rope_high_frequency_factor),
                      "must exceed model.rope_low_frequency_factor", "Llama 3 uses 4 and 1");
  }
  if (hidden == 0) hidden = gated() ? (8 * width / 3 + 63) / 64 * 64 : 4 * width;
  check_elements();
}

void ModelConfig::check_elements() const {
  constexpr double most = 281'474'976'710'656.0;  // 2^48: bytes of any state and sums fit 64 bits
  const auto columns = static_cast<double>(qkv_width() + width + (gated() ? 3 : 2) * hidden);
  const auto tables =
      static_cast<double>((tied ? 1 : 2) * vocabulary + (rotary() ? 0 : trained_length()));
  const double elements =
      static_cast<double>(width) * (static_cast<double>(layers) * columns + tables);
  if (elements <= most) return;
  throw ConfigError("model.width", std::to_string(width),
                    fmt::format("{} layers give about {:.1e} parameters; must be at most {:.1e}",
                                layers, elements, most),
                    "use a smaller model");
}

double ModelConfig::residual_deviation() const {
  return scaled_residual ? init_deviation / std::sqrt(2.0 * static_cast<double>(layers))
                         : init_deviation;
}

namespace {

nlohmann::json gpt2(int layers, int width, int heads) {
  return {{"layers", layers},      {"width", width},          {"heads", heads},
          {"kv_heads", heads},     {"hidden", 4 * width},     {"vocabulary", 50257},
          {"sequence", 1024},      {"norm", "layernorm"},     {"epsilon", 1e-5},
          {"position", "learned"}, {"activation", "gelu"},    {"bias", true},
          {"tied", true},          {"scaled_residual", true}, {"init_deviation", 0.02}};
}

nlohmann::json llama(int layers, int width, int heads, int kv_heads, int hidden, int vocabulary,
                     int sequence, double theta) {
  return {{"layers", layers},         {"width", width},        {"heads", heads},
          {"kv_heads", kv_heads},     {"hidden", hidden},      {"vocabulary", vocabulary},
          {"sequence", sequence},     {"norm", "rmsnorm"},     {"epsilon", 1e-5},
          {"position", "rotary"},     {"rope_theta", theta},   {"rope_scaling", "none"},
          {"activation", "swiglu"},   {"bias", false},         {"tied", false},
          {"scaled_residual", false}, {"init_deviation", 0.02}};
}

/// Llama 3.1 and later stretch the rotary wavelengths of the 8,192-token original.
nlohmann::json stretched(nlohmann::json values, double factor) {
  values["rope_scaling"] = "llama3";
  values["rope_factor"] = factor;
  values["rope_original_sequence"] = 8192;
  return values;
}

nlohmann::json with(nlohmann::json values, const nlohmann::json& changes) {
  values.update(changes);
  return values;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {"nano", "0.8 M, GPT-2 style: minutes on a laptop",
       with(gpt2(4, 128, 4), {{"vocabulary", 0}, {"sequence", 64}})},
      {"tiny", "3 M, Llama style: the demo",
       with(llama(4, 256, 4, 2, 704, 0, 128, 10000), {{"tied", true}, {"scaled_residual", true}})},
      {"small", "10.8 M, GPT-2 style: an hour on a workstation",
       with(gpt2(6, 384, 6), {{"vocabulary", 0}, {"sequence", 256}})},
      {"gpt2", "GPT-2 124M", gpt2(12, 768, 12)},
      {"gpt2-medium", "GPT-2 355M", gpt2(24, 1024, 16)},
      {"gpt2-large", "GPT-2 774M", gpt2(36, 1280, 20)},
      {"gpt2-xl", "GPT-2 1.5B", gpt2(48, 1600, 25)},
      {"llama-1b", "Llama 3.2 1B",
       with(stretched(llama(16, 2048, 32, 8, 8192, 128256, 8192, 500000), 32), {{"tied", true}})},
      {"llama-7b", "Llama 2 7B", llama(32, 4096, 32, 32, 11008, 32000, 4096, 10000)},
      {"llama-8b", "Llama 3.1 8B",
       stretched(llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000), 8)},
      {"llama-70b", "Llama 3.1 70B",
       stretched(llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000), 8)},
  };
  return all;
}

const Preset& find_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  const auto near = config::nearest(name, names);
  throw ConfigError("model.preset", name, "is not a preset",
                    near ? "did you mean " + *near + "?" : "`trireme presets` lists them");
}

}  // namespace trireme::model
