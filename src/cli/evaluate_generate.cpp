// trireme evaluate, trireme generate
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* evaluate_examples =
    R"(The model and the dataset are the checkpoint's. --data.path names another dataset,
--train.evaluate_samples bounds the work; `trireme train --help` lists the fields.

Examples:
  trireme evaluate --checkpoint run                        the newest of a run
  mpirun -n 4 trireme evaluate --checkpoint run/step-00001000 --split train
  trireme evaluate --checkpoint run --data.path other --train.evaluate_samples 100)";

constexpr const char* generate_examples = R"(Examples:
  trireme generate --checkpoint run --prompt "In the beginning"
  trireme generate --checkpoint run/step-00001000 --prompt "And" --tokens 500
  trireme generate --checkpoint run --temperature 0       always the likeliest
  trireme generate --checkpoint run --top-k 40 --top-p 0.95 --seed 7)";

/// Of a subcommand that reads a checkpoint, whose configuration decides about the model.
struct Options {
  RunSources sources;
  std::string checkpoint;
  std::string split = "valid";  // evaluate
  train::GenerateOptions job;   // generate
};

std::shared_ptr<Options> add_options(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--checkpoint", options->checkpoint, "step folder, or run folder: its newest")
      ->type_name("DIR=train.output");
  return options;
}

/// Makes `work` the job, with the configuration and the checkpoint's folder.
template <class Work>
void set_job(Command& command, const char* name, std::shared_ptr<Options> options, Work work) {
  command.run = [=](comm::Session& session, const std::vector<Setting>& given) {
    const std::vector<Setting> settings = options->sources.with_device(given);
    refuse_settings_of_the_run(settings, name);
    const ResolvedConfig resolved(options->sources.file, settings, session);
    const std::string& named = options->checkpoint;
    work(session, resolved.config, named.empty() ? resolved.config.train.output : named);
    return 0;
  };
}

config::Rule probability() {
  config::Rule rule = config::in_range(0, 1);
  rule.kept = [](const config::Value& value) {
    const auto* share = std::get_if<double>(&value);
    return share != nullptr && *share > 0 && *share <= 1;
  };
  rule.text = "must be above 0 and at most 1";
  rule.suggest = {};
  rule.remedy = "1 keeps every token";
  return rule;
}

}  // namespace

void add_evaluate(CLI::App& app, Command& command) {
  CLI::App* evaluate = app.add_subcommand("evaluate", "Mean loss of a checkpoint over a dataset");
  auto options = add_options(*evaluate);
  add_value(*evaluate, "--split", options->split, "valid or train",
            config::one_of({"valid", "train"}));
  options->sources.add_to(*evaluate);
  evaluate->footer(evaluate_examples);
  evaluate->callback([options, &command] {
    set_job(command, "evaluate", options,
            [options](comm::Session& session, const train::RunConfig& config,
                      const std::string& checkpoint) {
              train::evaluate(session, config, {.checkpoint = checkpoint, .split = options->split});
            });
  });
}

void add_generate(CLI::App& app, Command& command) {
  CLI::App* generate = app.add_subcommand("generate", "Continue a text");
  auto options = add_options(*generate);
  train::GenerateOptions& job = options->job;
  generate->add_option("--prompt", job.prompt, "text to continue")->type_name("TEXT");
  add_value(*generate, "--tokens", job.tokens, "tokens to make", config::at_least(1));
  add_value(*generate, "--temperature", job.temperature, "0 takes the likeliest token",
            config::non_negative());
  add_value(*generate, "--top-k", job.top_k, "draw among the k likeliest; 0: all",
            config::at_least(0));
  add_value(*generate, "--top-p", job.top_p, "draw among the likeliest of this share",
            probability());
  add_value(*generate, "--seed", job.seed, "same seed, same text", config::at_least(0));
  options->sources.add_to(*generate);
  generate->footer(generate_examples);
  generate->callback([options, &command] {
    set_job(command, "generate", options,
            [options](comm::Session& session, const train::RunConfig& config,
                      const std::string& checkpoint) {
              train::GenerateOptions job = options->job;
              job.checkpoint = checkpoint;
              train::generate(session, config, job);
            });
  });
}

}  // namespace trireme::cli
