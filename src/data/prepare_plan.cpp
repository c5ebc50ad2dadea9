#include "prepare_plan.hpp"

#include <set>
#include <system_error>
#include <utility>

#include <sys/stat.h>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/data/tokenizer.hpp"

#include "dataset_files.hpp"
#include "documents.hpp"

namespace trireme::data {

namespace fs = std::filesystem;
using nlohmann::json;

void check_options(const PrepareOptions& options) {
  const double fraction = options.valid_fraction;
  if (!(fraction >= 0 && fraction <= 1)) {
    throw Error("--valid-fraction {}: must be from 0 to 1; use 0.1", fraction);
  }
  if (options.shard_tokens < 1) {
    throw Error("--shard-tokens {}: must be at least 1; use {}", options.shard_tokens,
                PrepareOptions{}.shard_tokens);
  }
  if (options.sample_sentences < 1) {
    throw Error("--sample-sentences {}: must be at least 1; use {}", options.sample_sentences,
                PrepareOptions{}.sample_sentences);
  }
  const std::string name = dataset_name(options);
  if (!is_plain_text(name)) {
    throw Error("{} {}: a dataset's name must be 1 to 255 printable bytes; give another --name",
                options.name.empty() ? "--output" : "--name",
                config::one_line(config::shortened(name, 80)));
  }
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const fs::path& input : options.inputs) {
    struct stat file {};
    if (::stat(input.c_str(), &file) != 0) continue;  // refused where it is opened
    if (S_ISREG(file.st_mode) && !seen.insert({file.st_dev, file.st_ino}).second) {
      throw Error(
          "--input {}: is named twice, so validation would hold text that is trained on; name it "
          "once (a blend repeats a dataset)",
          config::one_line(input.string()));
    }
  }
}

fs::path plain_output(const PrepareOptions& options) {
  fs::path output = options.output.lexically_normal();
  if (!output.has_filename()) output = output.parent_path();
  if (output.filename().empty() || output.filename() == "." || output.filename() == "..") {
    throw Error("--output {}: names no new folder; name one, for example data/text",
                options.output.string());
  }
  return output;
}

std::string dataset_name(const PrepareOptions& options) {
  return options.name.empty() ? plain_output(options).filename().string() : options.name;
}

std::string plan_of(const PrepareOptions& options, OpenTokens open) {
  json plan{{"format", "trireme-prepare"},
            {"version", 1},
            {"input_format", options.input_format},
            {"tokenizer", options.tokenizer},
            {"vocabulary", options.vocabulary},
            {"end_of_document", options.end_of_document},
            {"documents", options.documents},
            {"prompt", options.prompt},
            {"sample_sentences", options.sample_sentences}};
  std::vector<fs::path> files = options.inputs;
  const std::size_t colon = options.tokenizer.find(':');
  std::error_code code;
  if (colon != std::string::npos) {
    fs::path model = options.tokenizer.substr(colon + 1);
    if (fs::is_directory(model, code)) model /= tokenizer_json_file;
    files.push_back(std::move(model));
  }
  for (const fs::path& input : options.inputs) {
    fs::path index = input;
    files.push_back(index.replace_extension(".idx"));  // Megatron-LM's
  }
  for (const fs::path& file : files) {
    struct stat status = {};
    if (::stat(file.c_str(), &status) != 0) continue;
    plan["files"].push_back({fs::absolute(file).string(), status.st_dev, status.st_ino,
                             status.st_size, status.st_ctim.tv_sec, status.st_ctim.tv_nsec});
  }
  plan["parts"] = json::array({json::array()});
  // Names need not be UTF-8.
  const auto text = [&] { return plan.dump(-1, ' ', false, json::error_handler_t::replace); };
  if (open != nullptr) return text();  // one part, whose documents may cross files
  const DocumentKind kind = DocumentKind::parse(options.documents, options.prompt);
  total_bytes(options.inputs);  // each is there
  plan["parts"].clear();
  for (const auto& part : parts_of(options.inputs, kind.unit, options.part_bytes)) {
    json& ranges = plan["parts"].emplace_back();
    for (const TextRange& range : part) ranges.push_back({range.input, range.begin, range.end});
  }
  return text();
}

}  // namespace trireme::data
