#include "trireme/checkpoint/hugging_face.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/model/transformer.hpp"

#include "foreign_folder.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::int64_t block_elements = std::int64_t{4} << 20;  // passed on at once

std::string prefixed(const params::Parameter& row) { return "parameters/" + row.name; }

/// A row of ours as a matrix: vectors have one column.
std::int64_t columns_of(const params::Parameter& row) {
  return row.shape.dimensions() == 2 ? row.shape[1] : 1;
}

/// Rows [first, last) along theirs, read from a checkpoint of ours.
void read_theirs(const Reader& reader, const params::Parameter& row, const ForeignTensor& theirs,
                 std::int64_t first, std::int64_t last, std::vector<float>& values) {
  const std::string name = prefixed(row);
  const std::int64_t columns = columns_of(row);
  if (!theirs.transposed) {
    const std::int64_t n = last - first;
    values.resize(static_cast<std::size_t>(n * columns));
    if (row.shape.dimensions() == 1) {
      reader.read(name, {theirs.begin + first}, Tensor(values.data(), {n}));
    } else {
      reader.read(name, {theirs.begin + first, 0}, Tensor(values.data(), {n, columns}));
    }
    return;
  }
  // Their rows are columns of ours.
  const std::int64_t out = theirs.end - theirs.begin, in = last - first;
  std::vector<float> ours(static_cast<std::size_t>(out * in));
  reader.read(name, {theirs.begin, first}, Tensor(ours.data(), {out, in}));
  values.resize(ours.size());
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      values[static_cast<std::size_t>(i * out + o)] = ours[static_cast<std::size_t>(o * in + i)];
    }
  }
}

/// Tensors of one file after the other, each of at most `file_bytes` unless a single one has more.
std::vector<std::vector<std::size_t>> split_files(const std::vector<ForeignTensor>& tensors,
                                                  std::int64_t element_bytes,
                                                  std::int64_t file_bytes) {
  std::vector<std::vector<std::size_t>> files(1);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::int64_t own = element_bytes;
    for (const std::int64_t extent : tensors[i].shape) own *= extent;
    if (!files.back().empty() && bytes + own > file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += own;
  }
  return files;
}

/// PyTorch's name for a type of safetensors that is exported.
std::string torch_type(const std::string& type) {
  if (type == "F32") return "float32";
  if (type == "BF16") return "bfloat16";
  if (type == "F16") return "float16";
  throw Error("--type = {}: must be F32, BF16 or F16", type);
}

}  // namespace

std::vector<std::string> export_safetensors(const Reader& reader, const model::ModelConfig& config,
                                            const ExportOptions& options) {
  const int bits = bits_of_safetensors_type(options.type);
  const std::string torch_dtype = torch_type(options.type);
  const model::Transformer model(config);
  const std::vector<ForeignTensor> tensors = foreign_tensors(config, model.table());
  if (fs::exists(fs::symlink_status(options.output))) {
    throw Error("{}: exists already; name a new folder", options.output.string());
  }
  fs::path temporary = (options.output / "").parent_path();  // without a slash at its end
  temporary += ".tmp";
  std::error_code error;
  fs::remove_all(temporary, error);
  if (!error) fs::create_directories(temporary, error);
  if (error) throw_file_error(temporary, "create", error.value());
  try {
    const auto files = split_files(tensors, bits / 8, options.file_bytes);
    std::vector<std::string> names;
    json weight_map = json::object();
    std::int64_t total = 0;
    std::vector<float> values;
    for (std::size_t f = 0; f < files.size(); ++f) {
      names.push_back(files.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size()));
      std::vector<SafeTensorsWriter::Entry> entries;
      std::map<std::string, const ForeignTensor*> by_name;
      for (const std::size_t i : files[f]) {
        entries.push_back({tensors[i].name, options.type, tensors[i].shape});
        by_name.emplace(tensors[i].name, &tensors[i]);
        weight_map[tensors[i].name] = names.back();
      }
      // transformers looks for this entry.
      SafeTensorsWriter writer(temporary / names.back(), std::move(entries), {{"format", "pt"}});
      for (const SafeTensorsWriter::Entry& entry : writer.order()) {
        const ForeignTensor& theirs = *by_name.at(entry.name);
        const params::Parameter& row = model.table().row(theirs.row);
        const std::int64_t width = theirs.shape.size() == 2 ? theirs.shape[1] : 1;
        const std::int64_t step = std::max<std::int64_t>(1, block_elements / width);
        for (std::int64_t first = 0; first < theirs.shape[0]; first += step) {
          const std::int64_t last = std::min(theirs.shape[0], first + step);
          read_theirs(reader, row, theirs, first, last, values);
          writer.write(values.data(), static_cast<std::int64_t>(values.size()));
          total += static_cast<std::int64_t>(values.size()) * bits / 8;
        }
      }
      writer.finish();
    }
    std::vector<std::string> others = {"config.json"};
    json foreign = to_foreign_config(config);
    foreign["torch_dtype"] = torch_dtype;
    if (const auto tokenizer = kept_tokenizer(reader)) {
      if (tokenizer->tokenizer == "huggingface") {
        const data::StoredTokenizer stored = data::stored_tokenizer(*tokenizer, reader.folder());
        write_file(temporary / stored.file, stored.content);
        others.push_back(stored.file);
      }
      if (tokenizer->end_of_document) foreign["eos_token_id"] = *tokenizer->end_of_document;
    }
    write_file(temporary / "config.json", foreign.dump(2) + "\n");
    if (names.size() > 1) {
      const json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
      write_file(temporary / "model.safetensors.index.json", index.dump(2) + "\n");
      names.emplace_back("model.safetensors.index.json");
    }
    names.insert(names.end(), others.begin(), others.end());
    sync_path(temporary);
    rename_for_good(temporary, options.output);
    return names;
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

namespace {

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

/// Keeps the folder's tokenizer.json if it fits; else returns why not.
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

}  // namespace

fs::path import_safetensors(const fs::path& folder, const fs::path& root, comm::Communicator& world,
                            json versions, std::string* warning) {
  std::vector<std::vector<float>> storage;
  std::vector<Piece> pieces;
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
    // Rows go to the rank that has least so far.
    std::vector<std::int64_t> loads(static_cast<std::size_t>(world.size()), 0);
    for (std::size_t r = 0; r < model.table().rows().size(); ++r) {
      const params::Parameter& row = model.table().rows()[r];
      const auto least = std::min_element(loads.begin(), loads.end());
      *least += row.shape.elements();
      if (least - loads.begin() != world.rank()) continue;
      std::vector<float>& values =
          storage.emplace_back(static_cast<std::size_t>(row.shape.elements()));
      const std::int64_t columns = columns_of(row);
      for (const ForeignTensor& part : tensors) {
        if (part.row != static_cast<int>(r)) continue;
        const auto [file, tensor] = find(theirs, part);
        read_part(*file, *tensor, part, columns, values.data() + part.begin * columns);
      }
      const Tensor data = row.shape.dimensions() == 1
                              ? Tensor(values.data(), {row.shape[0]})
                              : Tensor(values.data(), {row.shape[0], row.shape[1]});
      pieces.push_back({prefixed(row), row.shape, {}, data, true});
    }
    model::ModelConfig recorded = config;
    config::Fields fields;
    fields.section("model", recorded);
    state.config = {{"model", fields.to_json().at("model")}};
    state.versions = std::move(versions);
    state.extra = {{weights_only, true}, {"imported_from", folder.string()}};
    if (world.rank() == 0) import_tokenizer(folder, config.vocabulary, state, warning);
  });
  return save(root, state, pieces, world);
}

}  // namespace trireme::checkpoint
