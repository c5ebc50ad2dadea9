// trireme presets
#include "trireme/model/transformer.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* presets_examples = R"(Examples:
  trireme presets
  trireme train --model.preset gpt2 --data.path dataset
  trireme train --model.preset small --model.dropout 0.2 --data.path dataset)";

/// Where a preset leaves the vocabulary to the dataset, that of plain bytes is counted.
constexpr std::int64_t byte_vocabulary = 256;

std::string row(const model::Preset& preset) {
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  fields.from_json({{"model", preset.values}}, config::Source::preset, preset.name);
  const bool open = config.vocabulary == 0;
  if (open) config.vocabulary = byte_vocabulary;
  config.resolve();
  const model::Transformer model(config);
  return fmt::format("{:<12} {:>15}{} {:>6} {:>6} {:>5} {:>4} {:>6}  {}\n", preset.name,
                     grouped(model.table().elements()), open ? '*' : ' ', config.layers,
                     config.width, config.heads, config.kv_heads, config.sequence, preset.about);
}

std::string table() {
  std::string text = fmt::format("{:<12} {:>15}  {:>6} {:>6} {:>5} {:>4} {:>6}  {}\n", "preset",
                                 "parameters", "layers", "width", "heads", "kv", "tokens", "about");
  for (const model::Preset& preset : model::presets()) text += row(preset);
  text += fmt::format("* with a vocabulary of {} bytes; the dataset's counts\n", byte_vocabulary);
  return text;
}

}  // namespace

void add_presets(CLI::App& app, Command& command) {
  CLI::App* presets = app.add_subcommand("presets", "Named models and their sizes");
  presets->footer(presets_examples);
  presets->callback([&command] { command.run = printing(table); });
}

}  // namespace trireme::cli
