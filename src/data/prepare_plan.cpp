#include "prepare_plan.hpp"

#include <system_error>

#include "trireme/core/error.hpp"

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

json plan_of(const PrepareOptions& options, const fs::path& output, OpenTokens open) {
  json plan{{"format", "trireme-prepare"},
            {"version", 1},
            {"name", options.name.empty() ? output.filename().string() : options.name},
            {"input_format", options.input_format},
            {"tokenizer", options.tokenizer},
            {"vocabulary", options.vocabulary},
            {"end_of_document", options.end_of_document},
            {"documents", options.documents},
            {"prompt", options.prompt},
            {"sample_sentences", options.sample_sentences}};
  std::vector<fs::path> files = options.inputs;
  const std::size_t colon = options.tokenizer.find(':');
  if (colon != std::string::npos) files.emplace_back(options.tokenizer.substr(colon + 1));
  for (const fs::path& file : files) {
    std::error_code code;
    plan["files"].push_back({fs::absolute(file).string(), fs::file_size(file, code),
                             fs::last_write_time(file, code).time_since_epoch().count()});
  }
  plan["parts"] = json::array({json::array()});
  if (open != nullptr) return plan;  // one part, whose documents may cross files
  const DocumentKind kind = DocumentKind::parse(options.documents, options.prompt);
  total_bytes(options.inputs);  // each is there
  plan["parts"].clear();
  for (const auto& part : parts_of(options.inputs, kind.unit, options.part_bytes)) {
    json& ranges = plan["parts"].emplace_back();
    for (const TextRange& range : part) {
      ranges.push_back({range.file.string(), range.begin, range.end});
    }
  }
  return plan;
}

}  // namespace trireme::data
