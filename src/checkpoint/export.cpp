// A checkpoint's weights to a model's folder as transformers keeps it.
#include <algorithm>
#include <map>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/core/error.hpp"
#include "trireme/model/transformer.hpp"

#include "manifest.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Rows [first, last) along theirs, read from a checkpoint of ours.
void read_theirs(const Reader& reader, const params::Parameter& row, const ForeignTensor& theirs,
                 std::int64_t first, std::int64_t last, std::vector<float>& values) {
  const std::string name = "parameters/" + row.name;
  const auto read = [&](const Index& begin, const Tensor& data) {
    reader.read(name, begin, data);
    require_finite(reader.folder().string(), name, {begin, data.shape()}, data);
  };
  if (!theirs.transposed) {
    const std::int64_t n = last - first;
    const bool vector = row.shape.dimensions() == 1;
    const std::int64_t columns = vector ? 1 : row.shape[1];
    values.resize(static_cast<std::size_t>(n * columns));
    if (vector) {
      read({theirs.begin + first}, Tensor(values.data(), {n}));
    } else {
      read({theirs.begin + first, 0}, Tensor(values.data(), {n, columns}));
    }
    return;
  }
  // Their rows are columns of ours.
  const std::int64_t out = theirs.end - theirs.begin, in = last - first;
  std::vector<float> ours(static_cast<std::size_t>(out * in));
  read({theirs.begin, first}, Tensor(ours.data(), {out, in}));
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
    const AuxiliaryFiles auxiliary = kept_auxiliary_files(reader);
    foreign.update(auxiliary.config);
    for (const State::Attachment& file : auxiliary.files) {
      write_file(temporary / file.name, file.content);
      others.push_back(file.name);
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

}  // namespace trireme::checkpoint
