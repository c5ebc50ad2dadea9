// trireme inspect
#include <algorithm>
#include <map>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data/tokenizer.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* inspect_examples = R"(Examples:
  trireme inspect dataset
  trireme inspect dataset --verify          re-reads every checksum
  trireme inspect blend.toml                sources and their shares
  trireme inspect run                       the newest checkpoint of a run
  trireme inspect run/step-00001000 --tensors)";

struct InspectOptions {
  std::string folder;
  bool verify = false, tensors = false;
};

/// The first `count` characters; a character is cut nowhere.
std::string first_characters(const std::string& text, std::size_t count) {
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && seen++ == count) break;
  }
  return text.substr(0, end);
}

std::string beginning(const data::Dataset& dataset, data::SplitName split) {
  const auto reader = dataset.reader(split, data::make_reader_cache(1));  // the smallest
  std::vector<std::int32_t> ids(
      static_cast<std::size_t>(std::min<std::int64_t>(reader->tokens(), 256)));
  reader->read(0, ids);
  if (dataset.manifest().tokenizer == "none") return first_text(ids, nullptr);
  return first_text(ids, data::load_tokenizer(dataset).get());
}

/// The sources of a blend, which `path` names.
std::string show_blend(const std::string& path, const InspectOptions& options) {
  const data::Corpus corpus = data::Corpus::open(path, 1);
  corpus.check_headers();
  std::string text = line("blend", config::one_line(path)) +
                     line("tokenizer", corpus.manifest().tokenizer) +
                     line("vocabulary", grouped(corpus.manifest().vocabulary));
  // A column of shares for each phase. Samples have one token here.
  text += fmt::format("\n{:<24}", "source");
  for (const data::BlendPhase& phase : corpus.phases()) {
    text += corpus.phases().size() == 1 ? fmt::format("{:>9}", "share")
                                        : fmt::format("  from {:>15}", grouped(phase.first));
  }
  text += fmt::format("{:>18}{:>18}  {}\n", "train tokens", "valid tokens", "folder");
  for (std::size_t i = 0; i < corpus.sources().size(); ++i) {
    const data::Corpus::Source& source = corpus.sources()[i];
    text += fmt::format("{:<24}", config::one_line(source.name));
    for (const auto& [first, shares] : corpus.phases()) {
      text +=
          fmt::format("{:>{}.3g} %",
                      100 * static_cast<double>(shares.parts[i]) / static_cast<double>(shares.all),
                      corpus.phases().size() == 1 ? 7 : 20);
    }
    text += fmt::format("{:>18}{:>18}  {}\n", grouped(source.tokens(data::SplitName::train)),
                        grouped(source.tokens(data::SplitName::valid)),
                        source.dataset.folder().string());
    if (options.verify) source.dataset.verify();
  }
  if (options.verify)
    text += "\nverified: every file's hash, every chunk's checksum, every token\n";
  return text;
}

std::string shard_rows(const char* split, const data::Dataset& dataset,
                       const std::vector<data::ShardInfo>& shards) {
  std::string text;
  std::int64_t tokens = 0, documents = 0, bytes = 0;
  const auto row = [split](const std::string& file, std::int64_t some_tokens,
                           std::int64_t some_documents, std::int64_t some_bytes) {
    return fmt::format("{:<6}{:<18}{:>18}{:>14}{:>12}\n", split, file, grouped(some_tokens),
                       grouped(some_documents), bytes_text(some_bytes));
  };
  for (const data::ShardInfo& shard : shards) {
    std::error_code error;
    const auto size =
        static_cast<std::int64_t>(std::filesystem::file_size(dataset.folder() / shard.file, error));
    if (error)
      throw Error("{}/{}: {}; prepare the dataset again", dataset.folder().string(), shard.file,
                  error.message());
    text += row(shard.file, shard.tokens, shard.documents, size);
    tokens += shard.tokens, documents += shard.documents, bytes += size;
  }
  if (shards.size() != 1) text += row("all", tokens, documents, bytes);
  return text;
}

std::string show_dataset(const InspectOptions& options) {
  const data::Dataset dataset = data::Dataset::open(options.folder);
  const data::Manifest& manifest = dataset.manifest();
  std::string text =
      line("dataset", manifest.name) + line("tokenizer", manifest.tokenizer) +
      line("vocabulary", grouped(manifest.vocabulary)) +
      line("element type", fmt::format("uint{}", 8 * manifest.element_bytes)) +
      line("end of document",
           manifest.end_of_document ? std::to_string(*manifest.end_of_document) : "none");
  if (manifest.loss_weights) text += line("loss weights", "0 for tokens of prompts");
  if (!manifest.train.empty())
    text += line("train begins", beginning(dataset, data::SplitName::train));
  if (!manifest.valid.empty())
    text += line("valid begins", beginning(dataset, data::SplitName::valid));
  text += fmt::format("\n{:<6}{:<18}{:>18}{:>14}{:>12}\n", "split", "shard", "tokens", "documents",
                      "bytes");
  text +=
      shard_rows("train", dataset, manifest.train) + shard_rows("valid", dataset, manifest.valid);
  if (options.verify) {
    dataset.verify();
    text += "\nverified: every file's hash, every chunk's checksum, every token\n";
  }
  return text;
}

/// The model's keys as a table of a configuration file.
std::string model_section(const nlohmann::json& config) {
  if (!config.contains("model")) return "";
  std::string text = "\n[model]\n";
  // A scalar of JSON is one of TOML.
  for (const auto& [key, value] : config.at("model").items()) {
    if (value.is_primitive()) text += fmt::format("{} = {}\n", config::one_line(key), value.dump());
  }
  return text;
}

std::string show_checkpoint(const std::filesystem::path& folder, const InspectOptions& options) {
  const checkpoint::Reader reader(folder);
  const checkpoint::State& state = reader.state();
  std::string text = line("checkpoint", folder.string()) + line("step", grouped(state.step)) +
                     line("samples", grouped(state.samples)) +
                     line("seed", std::to_string(state.seed));
  for (const auto& [name, version] : state.versions.items()) {
    text += line("by " + name, config::one_line(version.is_string() ? version.get<std::string>()
                                                                    : version.dump()));
  }
  const auto tokenizer = checkpoint::kept_tokenizer(reader);
  if (tokenizer) {
    text += line("tokenizer", fmt::format("{}, vocabulary {}", tokenizer->tokenizer,
                                          grouped(tokenizer->vocabulary)));
  }
  text += model_section(state.config);

  struct Sum {
    std::int64_t tensors = 0, elements = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;  // by the name's part before the first slash
  for (const auto& entry : reader.tensors()) {
    Sum& sum = sums[entry.name.substr(0, entry.name.find('/'))];
    sum.tensors += 1;
    sum.elements += entry.shape.elements();
    sum.bytes += entry.shape.elements() * static_cast<std::int64_t>(size_of(entry.type));
  }
  text += fmt::format("\n{:<24}{:>8}{:>18}{:>12}\n", "part", "tensors", "elements", "bytes");
  for (const auto& [part, sum] : sums) {
    text += fmt::format("{:<24}{:>8}{:>18}{:>12}\n", part, grouped(sum.tensors),
                        grouped(sum.elements), bytes_text(sum.bytes));
  }
  constexpr std::size_t shown = 16;
  const auto& files = reader.files();
  text += fmt::format("\n{:<40}{:>22}\n", "file", "bytes");
  for (std::size_t i = 0; i < std::min(files.size(), shown); ++i) {
    text += fmt::format("{:<40}{:>22}\n", files[i].name, bytes_text(files[i].bytes));
  }
  if (files.size() > shown) text += fmt::format("and {} more\n", files.size() - shown);
  if (options.tensors) {
    text += "\n";
    for (const auto& entry : reader.tensors()) {
      text +=
          fmt::format("{:<6}{:<20}{}\n", name_of(entry.type), entry.shape.to_string(), entry.name);
    }
  }
  if (options.verify) {
    reader.verify(true);
    if (tokenizer) data::load_tokenizer(*tokenizer, reader.folder());
    text += "\nverified: every block's hash, every value finite\n";
  }
  return text;
}

std::string inspect(const InspectOptions& options) {
  if (!options.tensors && data::is_blend(options.folder)) {
    return show_blend(options.folder, options);
  }
  const std::filesystem::path folder = options.folder;
  std::error_code error;
  const std::filesystem::path name = (folder / "").parent_path().filename();
  if (std::filesystem::exists(folder / "manifest.json", error) ||
      (name.string().starts_with("step-") && std::filesystem::is_directory(folder, error))) {
    return show_checkpoint(folder, options);
  }
  if (!std::filesystem::exists(folder / "dataset.json", error)) {
    std::vector<std::string> broken;
    const auto newest = checkpoint::newest(folder, &broken);
    if (!broken.empty() && (options.verify || !newest)) throw Error(broken.front());
    std::string text;
    for (const std::string& each : broken) text += "passed over: " + each + "\n";
    if (newest) return text + show_checkpoint(*newest, options);
  }
  if (options.tensors) {
    throw Error("{}: --tensors: holds no checkpoint; name a step folder or a run folder",
                folder.string());
  }
  return show_dataset(options);
}

}  // namespace

std::string first_text(const std::vector<std::int32_t>& ids, const data::Tokenizer* tokenizer) {
  if (tokenizer != nullptr) {
    return config::one_line(first_characters(tokenizer->decode(ids), 60));
  }
  std::string numbers;
  for (std::size_t i = 0; i < std::min<std::size_t>(ids.size(), 12); ++i) {
    numbers += (i > 0 ? " " : "") + std::to_string(ids[i]);
  }
  return numbers;
}

void add_inspect(CLI::App& app, Command& command) {
  CLI::App* inspected = app.add_subcommand("inspect", "What a dataset or a checkpoint holds");
  auto options = std::make_shared<InspectOptions>();
  inspected->add_option("DIR", options->folder, "dataset, blend, step folder or run folder")
      ->required()
      ->type_name("");
  inspected->add_flag("--verify", options->verify,
                      "re-read everything, check every checksum and value");
  inspected->add_flag("--tensors", options->tensors, "list a checkpoint's tensors");
  inspected->footer(inspect_examples);
  inspected->callback(
      [options, &command] { command.run = printing([options] { return inspect(*options); }); });
}

}  // namespace trireme::cli
