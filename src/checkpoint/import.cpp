// A model's folder as transformers keeps it, config.json and one or more safetensors files, to a
// checkpoint.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/model/transformer.hpp"

#include "auxiliary_files.hpp"
#include "manifest.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::int64_t most_json_bytes = std::int64_t{64} << 20;

/// `path`, or what it points to where it is a symbolic link. Links may stay in their folder or
/// lead, as in the cache of a hub, from snapshots/REVISION to the folder blobs beside snapshots.
/// Throws Error for others.
fs::path without_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  const fs::path folder = error ? fs::path() : fs::canonical(parent_of(path), error);
  const bool cached = folder.parent_path().filename() == "snapshots" &&
                      target.parent_path() == folder.parent_path().parent_path() / "blobs";
  if (error || (target.parent_path() != folder && !cached)) {
    throw Error(
        "{}: is a symbolic link out of its folder, which is not followed; put the file itself "
        "there",
        path.string());
  }
  return target;
}

/// Which open file of a folder holds which tensor.
class ForeignFolder {
 public:
  /// Opens everything and checks the index of several files both ways. Throws Error that names the
  /// file.
  explicit ForeignFolder(const std::filesystem::path& folder);
  const nlohmann::json& config() const { return config_; }
  std::string config_path() const { return (folder_ / "config.json").string(); }
  const std::map<std::string, const SafeTensorsFile*>& tensors() const { return where_; }
  /// Checks the files' checksums, which ranks share out.
  void verify(const comm::Communicator& world) const {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (static_cast<int>(i) % world.size() == world.rank()) files_[i]->verify();
    }
  }

 private:
  json parse(const std::string& name) const {
    const fs::path path = folder_ / name;
    return parse_json(read_small_file(without_link(path), most_json_bytes), path.string());
  }
  void open(const std::string& name) {
    without_link(folder_ / name);
    files_.push_back(std::make_unique<SafeTensorsFile>(folder_ / name, Links::follow));
    for (const SafeTensor& tensor : files_.back()->header().tensors) {
      if (where_.emplace(tensor.name, files_.back().get()).second) continue;
      throw Error("{}: tensor '{}' is in another file too; restore the folder",
                  files_.back()->path().string(), config::one_line(tensor.name));
    }
  }

  std::filesystem::path folder_;
  nlohmann::json config_;
  std::vector<std::unique_ptr<SafeTensorsFile>> files_;
  std::map<std::string, const SafeTensorsFile*> where_;
};

ForeignFolder::ForeignFolder(const fs::path& folder) : folder_(folder) {
  config_ = parse("config.json");
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(fs::symlink_status(index))) {
    open("model.safetensors");
    return;
  }
  const json values = parse("model.safetensors.index.json");
  const auto map = values.is_object() ? values.find("weight_map") : values.end();
  if (!values.is_object() || map == values.end() || !map->is_object()) {
    throw Error("{}: has no weight_map; restore the file", index.string());
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw Error("{}: a file name is not a string", index.string());
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) {
    if (name.empty() || name.front() == '.' || name.find('/') != name.npos ||
        name.find('\0') != name.npos) {
      throw Error("{}: '{}' is not a plain file name; restore the file", index.string(),
                  config::one_line(name));
    }
    open(name);
  }
  for (const auto& [tensor, file] : map->items()) {
    const auto found = where_.find(tensor);
    if (found == where_.end() || found->second->path().filename() != file.get<std::string>()) {
      throw Error("{}: tensor '{}' is not in {}; restore the folder", index.string(),
                  config::one_line(tensor), config::one_line(file.get<std::string>()));
    }
  }
  for (const auto& [tensor, file] : where_) {
    if (map->contains(tensor)) continue;
    throw Error("{}: tensor '{}' of {} is not in the weight_map; restore the folder",
                index.string(), config::one_line(tensor), file->path().filename().string());
  }
}

/// Tensors that some writers add and that are no parameters.
bool is_buffer(const std::string& name) {
  for (const char* suffix : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

std::string list_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
  }
  return text + "]";
}

/// Their tensor, found by its name with or without GPT-2's prefix, and of the right shape.
std::pair<const SafeTensorsFile*, const SafeTensor*> find(const ForeignFolder& folder,
                                                          const ForeignTensor& wanted) {
  constexpr std::string_view prefix = "transformer.";
  std::string name = wanted.name;
  auto found = folder.tensors().find(name);
  if (found == folder.tensors().end() && name.starts_with(prefix)) {
    name = name.substr(prefix.size());
    found = folder.tensors().find(name);
  }
  if (found == folder.tensors().end()) {
    throw Error("{}: tensor {} is missing in its files; restore the folder", folder.config_path(),
                wanted.name);
  }
  const SafeTensor* tensor = found->second->find(name);
  if (tensor->shape != wanted.shape) {
    throw Error("{}: tensor {}: is {}, and config.json means {}; restore the folder",
                found->second->path().string(), name, list_text(tensor->shape),
                list_text(wanted.shape));
  }
  return {found->second, tensor};
}

void check_tied(const ForeignFolder& folder, const SafeTensorsFile& head_file,
                const SafeTensor& head) {
  for (const char* name : {"transformer.wte.weight", "wte.weight", "model.embed_tokens.weight"}) {
    const auto found = folder.tensors().find(name);
    if (found == folder.tensors().end()) continue;
    const SafeTensor& embedding = *found->second->find(name);
    bool same = embedding.shape == head.shape;
    std::vector<float> a, b;
    for (std::int64_t first = 0; same && first < head.elements(); first += block_elements) {
      const auto n = static_cast<std::size_t>(std::min(block_elements, head.elements() - first));
      a.resize(n);
      b.resize(n);
      head_file.read(head, first, a);
      found->second->read(embedding, first, b);
      same = a == b;
    }
    if (!same) {
      throw Error(
          "{}: lm_head.weight differs from the embedding that config.json ties it to; set "
          "tie_word_embeddings to false",
          folder.config_path());
    }
  }
}

/// Fills rows [begin, end) of `ours` ([rows, columns], from that part on) from their tensor.
void read_part(const SafeTensorsFile& file, const SafeTensor& tensor, const ForeignTensor& theirs,
               std::int64_t columns, float* ours) {
  const std::int64_t all = tensor.elements(), out = theirs.end - theirs.begin;
  const std::int64_t width = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  const std::int64_t step = std::max<std::int64_t>(1, block_elements / width) * width;
  std::vector<float> values;
  for (std::int64_t first = 0; first < all; first += step) {
    values.resize(static_cast<std::size_t>(std::min(step, all - first)));
    file.read(tensor, first, values);
    const auto n = static_cast<std::int64_t>(values.size());
    if (const std::int64_t element = first_not_finite(values.data(), n, DType::f32); element < n) {
      throw Error("{}: tensor {}: element {} is NaN or infinite in fp32; use another model",
                  file.path().string(), tensor.name, first + element);
    }
    if (!theirs.transposed) {
      std::copy(values.begin(), values.end(), ours + first);
      continue;
    }
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t at = first + static_cast<std::int64_t>(k);
      ours[at % out * columns + at / out] = values[k];
    }
  }
}

/// Keeps the folder's tokenizer.json if it fits; else `warning` receives why not.
void import_tokenizer(const fs::path& folder, std::int64_t vocabulary, State& state,
                      std::string* warning) {
  const fs::path file = folder / data::tokenizer_json_file;
  if (!fs::exists(file)) return;
  try {
    const data::StoredTokenizer stored = data::stored_hugging_face(without_link(file));
    const auto ids = stored.description.at("vocabulary").get<std::int64_t>();
    if (ids > vocabulary) {
      throw Error("{}: has {} ids, the model {}; restore the folder", file.string(), ids,
                  vocabulary);
    }
    keep_tokenizer(state, stored);
  } catch (const Error& error) {
    if (warning != nullptr) *warning = error.what();
  }
}

/// Token ids that config.json names; negative ones mean none.
json token_ids(const fs::path& folder, const json& config) {
  json result = json::object();
  for (const char* key : token_id_keys) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    json ids = json::array();
    for (const json& id : found->is_array() ? *found : json::array({*found})) {
      if (!id.is_number_integer()) {
        throw Error("{}: {} = {}: must be a token id, a list of them or null; restore the file",
                    (folder / "config.json").string(), key, shown(*found));
      }
      if (id.is_number_unsigned()) ids.push_back(id);
    }
    if (!ids.empty()) result[key] = found->is_array() ? ids : ids.front();
  }
  return result;
}

/// Token ids, and the files beside config.json that belong to the tokenizer and to generation.
/// `skipped` receives why one cannot be read.
AuxiliaryFiles auxiliary_files_of(const fs::path& folder, const json& config,
                                  std::vector<std::string>* skipped) {
  AuxiliaryFiles result{.config = token_ids(folder, config), .files = {}};
  for (const char* name : auxiliary_names) {
    const fs::path file = folder / name;
    if (!fs::exists(fs::symlink_status(file))) continue;
    try {
      result.files.push_back({name, read_small_file(without_link(file), most_json_bytes)});
    } catch (const Error& error) {
      if (skipped != nullptr) skipped->emplace_back(error.what());
    }
  }
  return result;
}

/// Throws Error unless the folder has exactly the tensors of the model.
void check_tensors(const ForeignFolder& theirs, const std::vector<ForeignTensor>& tensors,
                   const model::ModelConfig& config, const comm::Communicator& world) {
  std::set<std::string> wanted;
  for (const ForeignTensor& tensor : tensors) wanted.insert(find(theirs, tensor).second->name);
  for (const auto& [name, file] : theirs.tensors()) {
    if (wanted.contains(name) || is_buffer(name)) continue;
    if (name == "lm_head.weight" && config.tied) {
      if (world.rank() == 0) check_tied(theirs, *file, *file->find(name));
      continue;
    }
    throw Error("{}: tensor '{}' has no place in the model of config.json; restore the folder",
                file->path().string(), config::one_line(name));
  }
}

/// The rows of the table that this rank is to save: each goes to the rank that has least so far.
std::vector<int> own_rows(const params::ParameterTable& table, const comm::Communicator& world) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(world.size()), 0);
  std::vector<int> own;
  for (std::size_t r = 0; r < table.rows().size(); ++r) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += table.rows()[r].shape.elements();
    if (least - loads.begin() == world.rank()) own.push_back(static_cast<int>(r));
  }
  return own;
}

/// Whole rows of parameters in memory, as pieces.
struct Rows {
  std::vector<std::vector<float>> storage;
  std::vector<Piece> pieces;

  /// Space for one, which is to be filled.
  const Tensor& add(const params::Parameter& row) {
    float* values = storage.emplace_back(static_cast<std::size_t>(row.shape.elements())).data();
    pieces.push_back({.name = "parameters/" + row.name,
                      .shape = row.shape,
                      .data = Tensor(values, row.shape),
                      .finite = true});
    return pieces.back().data;
  }
};

/// A checkpoint of step 0 without optimizer state.
State state_of(const model::ModelConfig& config, const std::string& source, json versions,
               json settings) {
  model::ModelConfig recorded = config;
  recorded.positions = config.trained_length();
  config::Fields fields;
  fields.section("model", recorded);
  State state;
  state.config = std::move(settings);
  state.config["model"] = fields.to_json().at("model");
  state.versions = std::move(versions);
  state.extra = {{weights_only, true}, {"imported_from", source}};
  return state;
}

}  // namespace

model::ModelConfig foreign_model(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const json config =
      parse_json(read_small_file(without_link(path), most_json_bytes), path.string());
  return from_foreign_config(config, path.string());
}

fs::path import_safetensors(const fs::path& folder, const fs::path& root, comm::Communicator& world,
                            json versions, std::string* warning, json settings,
                            std::vector<std::string>* skipped) {
  Rows rows;
  State state;
  comm::agree(world, [&] {
    const ForeignFolder theirs(folder);
    theirs.verify(world);
    const model::ModelConfig config = from_foreign_config(theirs.config(), theirs.config_path());
    if (config.layers > static_cast<std::int64_t>(theirs.tensors().size())) {
      throw Error("{}: {} layers, and {} tensors in its files; restore the folder",
                  theirs.config_path(), config.layers, theirs.tensors().size());
    }
    const model::Transformer model(config);
    const auto tensors = foreign_tensors(config, model.table());
    check_tensors(theirs, tensors, config, world);
    for (const int r : own_rows(model.table(), world)) {
      const Tensor& row = rows.add(model.table().row(r));
      const std::int64_t columns = row.shape().dimensions() == 2 ? row.extent(1) : 1;
      for (const ForeignTensor& part : tensors) {
        if (part.row != r) continue;
        const auto [file, tensor] = find(theirs, part);
        read_part(*file, *tensor, part, columns, row.as<float>() + part.begin * columns);
      }
    }
    state = state_of(config, folder.string(), std::move(versions), std::move(settings));
    if (world.rank() != 0) return;
    import_tokenizer(folder, config.vocabulary, state, warning);
    keep_auxiliary_files(state, auxiliary_files_of(folder, theirs.config(), skipped));
  });
  return save(root, state, rows.pieces, world);
}

fs::path import_weights(const Reader& reader, const model::ModelConfig& config,
                        const fs::path& root, comm::Communicator& world, json versions,
                        json settings) {
  Rows rows;
  State state;
  comm::agree(world, [&] {
    const model::Transformer model(config);
    for (const int r : own_rows(model.table(), world)) {
      const Tensor row = rows.add(model.table().row(r));
      reader.read(rows.pieces.back().name, {}, row);
      require_finite(reader.folder().string(), rows.pieces.back().name, {{}, row.shape()}, row);
    }
    state = state_of(config, reader.folder().string(), std::move(versions), std::move(settings));
    if (world.rank() != 0) return;
    if (const auto tokenizer = kept_tokenizer(reader)) {
      keep_tokenizer(state, data::stored_tokenizer(*tokenizer, reader.folder()));
    }
    keep_auxiliary_files(state, kept_auxiliary_files(reader));
  });
  return save(root, state, rows.pieces, world);
}

}  // namespace trireme::checkpoint
