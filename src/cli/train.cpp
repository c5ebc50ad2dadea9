// trireme train
#include <cstdio>
#include <optional>

#include "trireme/data_parallel/run.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* examples = R"(
Examples:
  trireme train --model.preset tiny --data.path dataset --train.steps 500
  mpirun -n 4 trireme train --config run.toml --optim.learning_rate 6e-4
  TRIREME_TRAIN_OUTPUT=run2 mpirun -n 4 trireme train --config run.toml
  trireme train --config run.toml --dry-run      what would run, and why
  trireme train --config run.toml --show train.output     one field, for scripts)";

struct Options {
  RunSources sources;
  std::string resume;
  std::optional<std::string> show;  // a field's key
  bool dry_run = false, trace = false, quiet = false;
};

std::string footer() {
  const BuiltInConfig all;
  return "Configuration, shown with its built-in values. Each field may come from a preset\n"
         "(--model.preset), a TOML file (--config), the environment (model.layers is\n"
         "TRIREME_MODEL_LAYERS) and the command line; the later one wins.\n\n" +
         describe(all.fields) + examples;
}

int run_train(comm::Session& session, const Options& options, std::vector<Setting> settings) {
  if (!options.resume.empty()) settings.push_back({"checkpoint.resume", options.resume});
  if (options.quiet) settings.push_back({"train.quiet", "true"});
  if (options.trace) settings.push_back({"train.trace", "true"});
  ResolvedConfig resolved(options.sources.file, options.sources.with_device(settings), session);
  if (options.show) {
    // As it is, and whatever the layout: a script that asks is not one of the ranks.
    print_on_root(session,
                  config::to_string(resolved.fields.at(*options.show, "--show").value()) + "\n");
    return 0;
  }
  if (!options.dry_run) {
    return train::exit_code(data_parallel::run(session, resolved.config, resolved.fields));
  }
  const std::string text = on_rank_zero(session, [&] {
    train::validate(resolved.config, train::layout_facts(resolved.config, session));
    return resolved.fields.to_toml();
  });
  print_on_root(session, text);
  return 0;
}

}  // namespace

void add_train(CLI::App& app, Command& command) {
  CLI::App* train = app.add_subcommand("train", "Train a model; resumes where a run folder ends");
  auto options = std::make_shared<Options>();
  options->sources.add_to(*train);
  train->add_option("--resume", options->resume, "auto, never or PATH: as --checkpoint.resume")
      ->type_name("TEXT");
  train->add_flag("--quiet", options->quiet, "no step lines: --train.quiet");
  train->add_flag("--trace", options->trace,
                  "the device's operations in trace.json: --train.trace");
  train->add_flag("--dry-run", options->dry_run, "check, print the resolved configuration, stop");
  train
      ->add_option("--show", options->show,
                   "print the resolved value of one field, as it is\nand for any number of "
                   "ranks, stop")
      ->type_name("SECTION.KEY");
  train->footer(footer);
  train->callback([options, &command] {
    command.run = [options](comm::Session& session, const std::vector<Setting>& settings) {
      return run_train(session, *options, settings);
    };
  });
}

}  // namespace trireme::cli
