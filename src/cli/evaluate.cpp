// trireme evaluate
#include "trireme/train/run.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* examples =
    R"(The model and the dataset are the checkpoint's. --data.path names another dataset,
--train.evaluate_samples bounds the work; `trireme train --help` lists the fields.

Examples:
  trireme evaluate --checkpoint run                        the newest of a run
  mpirun -n 4 trireme evaluate --checkpoint run/step-00001000 --split train
  trireme evaluate --checkpoint run --data.path other --train.evaluate_samples 100)";

struct Options {
  std::string file, device, checkpoint, split = "valid";
};

void run_evaluate(comm::Session& session, const Options& options, std::vector<Setting> settings) {
  if (!options.device.empty()) settings.push_back({"device.type", options.device});
  refuse_settings_of_the_run(settings, "evaluate");
  const ResolvedConfig resolved(options.file, settings, session);
  const std::string checkpoint =
      options.checkpoint.empty() ? resolved.config.train.output : options.checkpoint;
  train::evaluate(session, resolved.config, {.checkpoint = checkpoint, .split = options.split});
}

}  // namespace

void add_evaluate(CLI::App& app, Command& command) {
  CLI::App* evaluate = app.add_subcommand("evaluate", "Mean loss of a checkpoint over a dataset");
  auto options = std::make_shared<Options>();
  evaluate
      ->add_option("--checkpoint", options->checkpoint, "step folder, or run folder: its newest")
      ->type_name("DIR=train.output");
  add_value(*evaluate, "--split", options->split, "valid or train",
            config::one_of({"valid", "train"}));
  evaluate->add_option("--config", options->file, "configuration in TOML")->type_name("FILE");
  evaluate->add_option("--device", options->device, "cpu, cuda or auto: as --device.type")
      ->type_name("TEXT");
  evaluate->footer(examples);
  evaluate->callback([options, &command] {
    command.run = [options](comm::Session& session, const std::vector<Setting>& settings) {
      run_evaluate(session, *options, settings);
      return 0;
    };
  });
}

}  // namespace trireme::cli
