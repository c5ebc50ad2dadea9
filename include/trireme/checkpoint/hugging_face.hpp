// GPT-2 and Llama models as Hugging Face's transformers keep them: a folder with config.json and
// one or more safetensors files. Rows of our table are cut and turned where theirs are laid out
// otherwise: GPT-2's linear layers are stored [in, out], Llama's q, k, v and gate, up are matrices
// of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/model/config.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::checkpoint {

/// One of their tensors as a part of one of our rows: its rows [begin, end) along dimension 0.
struct ForeignTensor {
  std::string name;  // "transformer.h.0.attn.c_attn.weight"
  int row = 0;       // index in the parameter table
  std::int64_t begin = 0, end = 0;
  bool transposed = false;          // theirs is [in, out]
  std::vector<std::int64_t> shape;  // theirs
};

/// All tensors of a model of that table. Throws Error for a model that is neither a GPT-2
/// (layernorm, learned positions, gelu, biases) nor a Llama (rmsnorm, rotary, swiglu, no biases).
std::vector<ForeignTensor> foreign_tensors(const model::ModelConfig& config,
                                           const params::ParameterTable& table);

/// config.json of a model, and back. `from` is resolved; what it lacks takes the default of
/// transformers. Throws Error that begins with `source` for what we cannot compute alike.
nlohmann::json to_foreign_config(const model::ModelConfig& config);
model::ModelConfig from_foreign_config(const nlohmann::json& from, const std::string& source);

/// The model of such a folder's config.json. Throws Error.
model::ModelConfig foreign_model(const std::filesystem::path& folder);

/// What such a folder has beside the model, for programs that use it: checkpoints keep it, and an
/// export writes it back.
struct AuxiliaryFiles {
  nlohmann::json config = nlohmann::json::object();  // of config.json: "eos_token_id": 2, …
  std::vector<State::Attachment> files;              // generation_config.json, tokenizer's files
};
/// Makes them part of what is saved, but for files that `state` has attached already.
void keep_auxiliary_files(State& state, const AuxiliaryFiles& auxiliary);
/// Those of a checkpoint. Throws Error where they are damaged.
AuxiliaryFiles kept_auxiliary_files(const Reader& reader);

struct ExportOptions {
  std::filesystem::path output;
  std::string type = "F32";                 // F32, BF16 or F16
  std::int64_t file_bytes = 5'000'000'000;  // of data in one file; more take several and an index
};
/// Writes the weights of a checkpoint, its tokenizer.json if it has one, and its auxiliary files.
/// The folder must not exist; it appears whole or not at all. One rank's work; takes memory for one
/// block of rows. Returns the files' names.
std::vector<std::string> export_safetensors(const Reader& reader, const model::ModelConfig& config,
                                            const ExportOptions& options);

/// Reads such a folder into the checkpoint root/step-00000000, without optimizer state. Collective:
/// ranks share out the tensors. A tokenizer.json of the folder is kept in the checkpoint; where
/// that cannot be, rank 0's `warning` receives the reason, and `skipped` one for each auxiliary
/// file that cannot be read. `settings` are sections of the checkpoint's configuration beside the
/// model. Returns the checkpoint's path. Throws AgreedError.
std::filesystem::path import_safetensors(const std::filesystem::path& folder,
                                         const std::filesystem::path& root,
                                         comm::Communicator& world, nlohmann::json versions,
                                         std::string* warning = nullptr,
                                         nlohmann::json settings = nlohmann::json::object(),
                                         std::vector<std::string>* skipped = nullptr);

/// The same from a checkpoint, whose model is `config`: its weights without the optimizer's state.
std::filesystem::path import_weights(const Reader& reader, const model::ModelConfig& config,
                                     const std::filesystem::path& root, comm::Communicator& world,
                                     nlohmann::json versions, nlohmann::json settings);

/// The key of State::extra that marks a checkpoint with weights alone.
inline constexpr const char* weights_only = "weights_only";

}  // namespace trireme::checkpoint
