#include <cmath>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

namespace trireme::checkpoint {

using model::ModelConfig;
using nlohmann::json;

namespace {

bool is_gpt2(const ModelConfig& config) {
  return config.layer_norm() && !config.rotary() && config.activation == "gelu" && config.bias &&
         config.kv_heads == config.heads;
}

bool is_llama(const ModelConfig& config) {
  return !config.layer_norm() && config.rotary() && config.activation == "swiglu" && !config.bias;
}

class Names {
 public:
  explicit Names(const params::ParameterTable& table) : table_(table) {}

  /// A whole row.
  void add(const std::string& ours, const std::string& theirs, bool transposed = false) {
    const int row = index(ours);
    add_part(row, 0, table_.row(row).shape[0], theirs, transposed);
  }
  /// Each part of a fused row.
  void add_parts(const std::string& ours, const std::vector<std::string>& theirs) {
    const int row = index(ours);
    const auto& parts = table_.row(row).parts;
    TRIREME_ASSERT(parts.size() == theirs.size(), "{} parts of {}", parts.size(), ours);
    std::int64_t begin = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      add_part(row, begin, begin + parts[p].extent, theirs[p], false);
      begin += parts[p].extent;
    }
  }
  std::vector<ForeignTensor> take() {
    std::vector<int> covered(table_.rows().size(), 0);
    for (const ForeignTensor& tensor : tensors_) ++covered[static_cast<std::size_t>(tensor.row)];
    for (std::size_t row = 0; row < covered.size(); ++row) {
      TRIREME_ASSERT(covered[row] > 0, "no foreign name for {}", table_.rows()[row].name);
    }
    return std::move(tensors_);
  }

 private:
  int index(const std::string& name) const {
    const auto row = table_.find(name);
    TRIREME_ASSERT(row.has_value(), "no row {}", name);
    return *row;
  }
  void add_part(int row, std::int64_t begin, std::int64_t end, const std::string& theirs,
                bool transposed) {
    const Shape& shape = table_.row(row).shape;
    ForeignTensor tensor{theirs, row, begin, end, transposed, {end - begin}};
    if (shape.dimensions() == 2) {
      tensor.shape = transposed ? std::vector<std::int64_t>{shape[1], end - begin}
                                : std::vector<std::int64_t>{end - begin, shape[1]};
    }
    tensors_.push_back(std::move(tensor));
  }

  const params::ParameterTable& table_;
  std::vector<ForeignTensor> tensors_;
};

/// A value of config.json with the words to complain about it.
class Foreign {
 public:
  Foreign(const json& values, const std::string& source) : values_(values), source_(source) {
    if (!values.is_object()) throw Error("{}: is not a JSON object; restore the file", source);
  }
  bool has(const char* key) const { return values_.contains(key) && !values_.at(key).is_null(); }
  std::int64_t integer(const char* key) const {
    if (!has(key)) throw Error("{}: has no {}; restore the file", source_, key);
    return integer(key, 0);
  }
  std::int64_t integer(const char* key, std::int64_t missing) const {
    return value(key, missing, fmt::format("a whole number from 1 to {}", most), [](const json& v) {
      return v.is_number_integer() && v.get<std::int64_t>() >= 1 &&
             (!v.is_number_unsigned() || v.get<std::uint64_t>() <= most);
    });
  }
  double number(const char* key, double missing) const {
    return value(key, missing, "a number above 0", [](const json& v) {
      return v.is_number() && std::isfinite(v.get<double>()) && v.get<double>() > 0;
    });
  }
  bool flag(const char* key, bool missing) const {
    return value(key, missing, "true or false", [](const json& v) { return v.is_boolean(); });
  }
  std::string text(const char* key, const std::string& missing) const {
    return value(key, missing, "a string", [](const json& v) { return v.is_string(); });
  }
  /// Refuses a model that we would compute otherwise.
  void only(const char* key, const json& found, const json& supported) const {
    if (found != supported) {
      throw Error("{}: {} = {}: only {} is computed here; convert the model or use another",
                  source_, key, shown(found), supported.dump());
    }
  }
  Foreign at(const char* key) const { return {values_.at(key), source_ + ": " + key}; }

 private:
  static constexpr std::uint64_t most = std::uint64_t{1} << 24;  // products stay far below 2^63
  template <class T>
  T value(const char* key, const T& missing, std::string_view rule,
          bool (*valid)(const json&)) const {
    if (!has(key)) return missing;
    const json& found = values_.at(key);
    if (valid(found)) return found.get<T>();
    throw Error("{}: {} = {}: must be {}; restore the file", source_, key, shown(found), rule);
  }

  const json& values_;
  std::string source_;
};

ModelConfig gpt2_of(const Foreign& from) {
  const std::string activation = from.text("activation_function", "gelu_new");
  if (activation != "gelu_pytorch_tanh") from.only("activation_function", activation, "gelu_new");
  from.only("scale_attn_weights", from.flag("scale_attn_weights", true), true);
  from.only("scale_attn_by_inverse_layer_idx", from.flag("scale_attn_by_inverse_layer_idx", false),
            false);
  from.only("add_cross_attention", from.flag("add_cross_attention", false), false);
  ModelConfig config;
  config.layers = from.integer("n_layer", 12);
  config.width = from.integer("n_embd", 768);
  config.heads = config.kv_heads = from.integer("n_head", 12);
  config.hidden = from.integer("n_inner", 4 * config.width);
  config.sequence = config.positions = from.integer("n_positions", 1024);
  config.vocabulary = from.integer("vocab_size", 50257);
  config.epsilon = from.number("layer_norm_epsilon", 1e-5);
  config.tied = from.flag("tie_word_embeddings", true);
  return config;
}

ModelConfig llama_of(const Foreign& from) {
  from.only("hidden_act", from.text("hidden_act", "silu"), "silu");
  from.only("attention_bias", from.flag("attention_bias", false), false);
  from.only("mlp_bias", from.flag("mlp_bias", false), false);
  ModelConfig config;
  config.norm = "rmsnorm";
  config.position = "rotary";
  config.activation = "swiglu";
  config.bias = false;
  config.scaled_residual = false;
  config.layers = from.integer("num_hidden_layers", 32);
  config.width = from.integer("hidden_size", 4096);
  config.heads = from.integer("num_attention_heads", 32);
  config.kv_heads = from.integer("num_key_value_heads", config.heads);
  config.hidden = from.integer("intermediate_size", 11008);
  config.sequence = config.positions = from.integer("max_position_embeddings", 2048);
  config.vocabulary = from.integer("vocab_size", 32000);
  config.epsilon = from.number("rms_norm_eps", 1e-6);
  config.tied = from.flag("tie_word_embeddings", false);
  config.rope_theta = from.number("rope_theta", 10000);
  if (config.width % config.heads == 0) {
    from.only("head_dim", from.integer("head_dim", config.width / config.heads),
              config.width / config.heads);
  }
  // Newer files keep theta beside the scaling.
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!from.has(key)) continue;
    const Foreign scaling = from.at(key);
    config.rope_theta = scaling.number("rope_theta", config.rope_theta);
    const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
    if (type == "default") continue;
    scaling.only("rope_type", type, "llama3");
    config.rope_scaling = "llama3";
    config.rope_factor = scaling.number("factor", 8);
    config.rope_low_frequency_factor = scaling.number("low_freq_factor", 1);
    config.rope_high_frequency_factor = scaling.number("high_freq_factor", 4);
    config.rope_original_sequence = scaling.integer("original_max_position_embeddings");
  }
  return config;
}

}  // namespace

std::vector<ForeignTensor> foreign_tensors(const ModelConfig& config,
                                           const params::ParameterTable& table) {
  Names names(table);
  const auto both = [&](const std::string& ours, const std::string& theirs, bool matrix) {
    names.add(ours + ".weight", theirs + ".weight", matrix);
    names.add(ours + ".bias", theirs + ".bias");
  };
  if (is_gpt2(config)) {
    names.add("embedding.token.weight", "transformer.wte.weight");
    names.add("embedding.position.weight", "transformer.wpe.weight");
    for (std::int64_t i = 0; i < config.layers; ++i) {
      const std::string ours = fmt::format("blocks.{}.", i);
      const std::string theirs = fmt::format("transformer.h.{}.", i);
      both(ours + "norm1", theirs + "ln_1", false);
      both(ours + "attention.qkv", theirs + "attn.c_attn", true);
      both(ours + "attention.out", theirs + "attn.c_proj", true);
      both(ours + "norm2", theirs + "ln_2", false);
      both(ours + "mlp.up", theirs + "mlp.c_fc", true);
      both(ours + "mlp.down", theirs + "mlp.c_proj", true);
    }
    both("head.norm", "transformer.ln_f", false);
  } else if (is_llama(config)) {
    names.add("embedding.token.weight", "model.embed_tokens.weight");
    for (std::int64_t i = 0; i < config.layers; ++i) {
      const std::string ours = fmt::format("blocks.{}.", i);
      const std::string theirs = fmt::format("model.layers.{}.", i);
      names.add(ours + "norm1.weight", theirs + "input_layernorm.weight");
      names.add_parts(ours + "attention.qkv.weight",
                      {theirs + "self_attn.q_proj.weight", theirs + "self_attn.k_proj.weight",
                       theirs + "self_attn.v_proj.weight"});
      names.add(ours + "attention.out.weight", theirs + "self_attn.o_proj.weight");
      names.add(ours + "norm2.weight", theirs + "post_attention_layernorm.weight");
      names.add_parts(ours + "mlp.gate_up.weight",
                      {theirs + "mlp.gate_proj.weight", theirs + "mlp.up_proj.weight"});
      names.add(ours + "mlp.down.weight", theirs + "mlp.down_proj.weight");
    }
    names.add("head.norm.weight", "model.norm.weight");
  } else {
    throw Error(
        "model: norm {}, position {}, activation {}, bias {}, kv_heads {} of {}: transformers has "
        "no "
        "such model; only GPT-2's and Llama's kinds are written",
        config.norm, config.position, config.activation, config.bias, config.kv_heads,
        config.heads);
  }
  if (!config.tied) names.add("head.weight", "lm_head.weight");
  return names.take();
}

json to_foreign_config(const ModelConfig& config) {
  if (is_gpt2(config)) {
    return {{"model_type", "gpt2"},
            {"architectures", {"GPT2LMHeadModel"}},
            {"n_layer", config.layers},
            {"n_head", config.heads},
            {"n_embd", config.width},
            {"n_positions", config.trained_length()},
            {"n_ctx", config.trained_length()},
            {"n_inner", config.hidden},
            {"vocab_size", config.vocabulary},
            {"layer_norm_epsilon", config.epsilon},
            {"activation_function", "gelu_new"},
            {"tie_word_embeddings", config.tied},
            {"resid_pdrop", config.dropout},
            {"embd_pdrop", config.dropout},
            {"attn_pdrop", config.attention_dropout}};
  }
  json result{{"model_type", "llama"},
              {"architectures", {"LlamaForCausalLM"}},
              {"hidden_size", config.width},
              {"intermediate_size", config.hidden},
              {"num_hidden_layers", config.layers},
              {"num_attention_heads", config.heads},
              {"num_key_value_heads", config.kv_heads},
              {"head_dim", config.head_size()},
              {"hidden_act", "silu"},
              {"rms_norm_eps", config.epsilon},
              {"rope_theta", config.rope_theta},
              {"rope_scaling", nullptr},
              {"max_position_embeddings", config.trained_length()},
              {"tie_word_embeddings", config.tied},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"attention_dropout", config.attention_dropout},
              {"vocab_size", config.vocabulary}};
  if (config.rope_scaling == "llama3") {
    result["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", config.rope_factor},
                              {"low_freq_factor", config.rope_low_frequency_factor},
                              {"high_freq_factor", config.rope_high_frequency_factor},
                              {"original_max_position_embeddings", config.rope_original_sequence}};
  }
  return result;
}

ModelConfig from_foreign_config(const json& from, const std::string& source) {
  const Foreign values(from, source);
  const std::string type = values.text("model_type", "");
  ModelConfig config;
  if (type == "gpt2") {
    config = gpt2_of(values);
  } else if (type == "llama") {
    config = llama_of(values);
  } else {
    throw Error(
        "{}: model_type = \"{}\": must be gpt2 or llama; other models are not computed here",
        source, config::one_line(type));
  }
  try {
    config.resolve();
  } catch (const Error& error) {
    throw Error("{}: {}", source, error.what());
  }
  return config;
}

}  // namespace trireme::checkpoint
