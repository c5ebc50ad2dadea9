// trireme generate
#include "trireme/train/run.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* examples = R"(Examples:
  trireme generate --checkpoint run --prompt "In the beginning"
  trireme generate --checkpoint run/step-00001000 --prompt "And" --tokens 500
  trireme generate --checkpoint run --temperature 0       always the likeliest
  trireme generate --checkpoint run --top-k 40 --top-p 0.95 --seed 7)";

struct Options {
  std::string file, device, checkpoint;
  train::GenerateOptions job;
};

void run_generate(comm::Session& session, const Options& options, std::vector<Setting> settings) {
  if (!options.device.empty()) settings.push_back({"device.type", options.device});
  refuse_settings_of_the_run(settings, "generate");
  const ResolvedConfig resolved(options.file, settings, session);
  train::GenerateOptions job = options.job;
  job.checkpoint = options.checkpoint.empty() ? resolved.config.train.output : options.checkpoint;
  train::generate(session, resolved.config, job);
}

config::Rule probability() {
  config::Rule rule = config::in_range(0, 1);
  rule.kept = [](const config::Value& value) {
    const auto* share = std::get_if<double>(&value);
    return share != nullptr && *share > 0 && *share <= 1;
  };
  rule.words = "must be above 0 and at most 1";
  rule.suggest = {};
  rule.mend = "1 keeps every token";
  return rule;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  CLI::App* generate = app.add_subcommand("generate", "Continue a text");
  auto options = std::make_shared<Options>();
  train::GenerateOptions& job = options->job;
  generate
      ->add_option("--checkpoint", options->checkpoint, "step folder, or run folder: its newest")
      ->type_name("DIR=train.output");
  generate->add_option("--prompt", job.prompt, "text to continue")->type_name("TEXT");
  add_value(*generate, "--tokens", job.tokens, "tokens to make", config::at_least(1));
  add_value(*generate, "--temperature", job.temperature, "0 takes the likeliest token",
            config::non_negative());
  add_value(*generate, "--top-k", job.top_k, "draw among the k likeliest; 0: all",
            config::at_least(0));
  add_value(*generate, "--top-p", job.top_p, "draw among the likeliest of this share",
            probability());
  add_value(*generate, "--seed", job.seed, "same seed, same text", config::at_least(0));
  generate->add_option("--config", options->file, "configuration in TOML")->type_name("FILE");
  generate->add_option("--device", options->device, "cpu, cuda or auto: as --device.type")
      ->type_name("TEXT");
  generate->footer(examples);
  generate->callback([options, &command] {
    command.run = [options](comm::Session& session, const std::vector<Setting>& settings) {
      run_generate(session, *options, settings);
      return 0;
    };
  });
}

}  // namespace trireme::cli
