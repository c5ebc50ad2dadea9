// trireme train, trireme evaluate, trireme generate
#include "trireme/data_parallel/run.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* train_examples = R"(
Examples:
  trireme train --model.preset tiny --data.path dataset --train.steps 500
  mpirun -n 4 trireme train --config run.toml --optim.learning_rate 6e-4
  TRIREME_TRAIN_OUTPUT=run2 mpirun -n 4 trireme train --config run.toml
  trireme train --from llama-8b --data.path dataset --model.sequence 2048
  trireme train --config run.toml --dry-run      what would run, and why
  trireme train --config run.toml --dry-run --ranks 512   and what would fail
  trireme train --config run.toml --show train.output     one field, for scripts)";

struct TrainOptions {
  RunSources sources;
  std::string resume, from;
  std::optional<std::string> show;  // a field's key
  bool dry_run = false, trace = false, quiet = false;
  std::int64_t ranks = 0;    // of a dry run; 0: those that are there
  std::int64_t samples = 0;  // the step whose samples a dry run shows; 0: of none
};

std::string footer() {
  const BuiltInConfig all;
  return "Configuration, shown with its built-in values. Each field may come from a preset\n"
         "(--model.preset), a TOML file (--config), the environment (model.layers is\n"
         "TRIREME_MODEL_LAYERS) and the command line; the later one wins.\n\n" +
         describe(all.fields) + train_examples;
}

/// With train.from: makes the checkpoint that the run resumes, once all else is found right.
void begin_from(comm::Session& session, const train::RunConfig& config) {
  if (config.train.from.empty()) return;
  on_rank_zero(session, [&] {
    train::RunConfig checked = config;
    train::validate(checked, train::layout_facts(checked, session));
    return std::string();
  });
  const std::string warning = train::make_start(config, session);
  if (!warning.empty()) {
    std::fputs(fmt::format("trireme: warning: {}\n", warning).c_str(), stderr);
  }
}

int run_train(comm::Session& session, const TrainOptions& options, std::vector<Setting> settings) {
  if (options.ranks > 0 && !options.dry_run)
    throw UsageError("train: --ranks belongs to --dry-run");
  if (options.samples > 0 && !options.dry_run)
    throw UsageError("train: --samples belongs to --dry-run");
  if (!options.resume.empty()) settings.push_back({"checkpoint.resume", options.resume});
  if (!options.from.empty()) settings.push_back({"train.from", options.from});
  if (options.quiet) settings.push_back({"train.quiet", "true"});
  if (options.trace) settings.push_back({"train.trace", "true"});
  ResolvedConfig resolved(options.sources.file, options.sources.with_device(settings), session);
  if (options.show) {
    // As it is, and whatever the layout: a script that asks is not one of the ranks.
    print_on_root(session,
                  config::to_string(resolved.fields.at(*options.show, "--show").value()) + "\n");
    return 0;
  }
  if (resolved.config.parallel.layout == "auto") {
    choose_layout(resolved, session, static_cast<int>(options.ranks));
  }
  if (!options.dry_run) {
    begin_from(session, resolved.config);
    return train::exit_code(data_parallel::run(session, resolved.config, resolved.fields));
  }
  const std::string text = on_rank_zero(session, [&] {
    train::LayoutFacts facts = train::layout_facts(resolved.config, session);
    if (options.ranks > 0) {
      facts.world = static_cast<int>(options.ranks);
      facts.node_of.clear();
    }
    train::validate(resolved.config, facts);
    check_data(resolved.config);
    if (options.samples > 0) return show_samples(resolved.config, facts, options.samples);
    if (options.ranks == 0) return resolved.fields.to_toml();
    const std::string found = dry_run(resolved.config, std::move(facts));
    return resolved.fields.to_toml() + "\n" + found;
  });
  print_on_root(session, text);
  return 0;
}

constexpr const char* evaluate_examples =
    R"(Model, precision and dataset are the checkpoint's; --data.path names other
data, --model.sequence sets the tokens of a window. Every other field is this
command's: repeat --data.document_mask true, or give --config of the run, whose
train.evaluate_samples counts too.
`trireme train --help` lists the fields.

Examples:
  trireme evaluate --checkpoint run                        the newest of a run
  mpirun -n 4 trireme evaluate --checkpoint run/step-00001000 --split train
  trireme evaluate --checkpoint run --data.path other --train.evaluate_samples 100
  trireme evaluate --checkpoint run --data.document_mask true)";

constexpr const char* generate_examples = R"(Examples:
  trireme generate --checkpoint run --prompt "In the beginning"
  trireme generate --checkpoint run/step-00001000 --prompt "And" --tokens 500
  trireme generate --checkpoint run --temperature 0       always the likeliest
  trireme generate --checkpoint run --top-k 40 --top-p 0.95 --seed 7)";

/// Of a subcommand that reads a checkpoint, whose configuration decides about the model.
struct ReadOptions {
  RunSources sources;
  std::string checkpoint;
  train::EvaluateOptions evaluation;
  train::GenerateOptions generation;
};

std::shared_ptr<ReadOptions> add_options(CLI::App& app) {
  auto options = std::make_shared<ReadOptions>();
  app.add_option("--checkpoint", options->checkpoint, "step folder, or run folder: its newest")
      ->type_name("DIR=train.output");
  return options;
}

/// Makes `work` the job, with the configuration, the checkpoint's folder, and the sequence length
/// that the user asks for, or 0.
template <class Work>
void set_job(Command& command, const char* name, std::shared_ptr<ReadOptions> options, Work work) {
  command.run = [=](comm::Session& session, const std::vector<Setting>& given) {
    const std::vector<Setting> settings = options->sources.with_device(given);
    refuse_settings_of_the_run(settings, name);
    const ResolvedConfig resolved(options->sources.file, settings, session,
                                  ResolvedConfig::From::ignored);
    const std::string& named = options->checkpoint;
    const bool has_sequence = std::ranges::any_of(
        settings, [](const Setting& setting) { return setting.key == "model.sequence"; });
    work(session, resolved.config, named.empty() ? resolved.config.train.output : named,
         has_sequence ? resolved.config.model.sequence : 0);
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

void add_train(CLI::App& app, Command& command) {
  CLI::App* train = app.add_subcommand("train", "Train a model; resumes where a run folder ends");
  auto options = std::make_shared<TrainOptions>();
  options->sources.add_to(*train);
  train->add_option("--resume", options->resume, "auto, never or PATH: as --checkpoint.resume")
      ->type_name("TEXT");
  train
      ->add_option("--from", options->from,
                   "a checkpoint or a transformers model that\nthe run begins with: --train.from")
      ->type_name("DIR");
  train->add_flag("--quiet", options->quiet, "print only warnings and errors: --train.quiet");
  train->add_flag("--trace", options->trace,
                  "the device's operations in trace.json: --train.trace");
  train->add_flag("--dry-run", options->dry_run, "check, print the resolved configuration, stop");
  add_value(*train, "--ranks", options->ranks,
            "with --dry-run: as on so many ranks, with\ntheir memory and programs",
            config::in_range(1, most_ranks))
      ->default_str("");
  add_value(*train, "--samples", options->samples,
            "with --dry-run: the samples of that step, by\nrank, and what each source gives",
            config::at_least(1))
      ->default_str("");
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

void add_evaluate(CLI::App& app, Command& command) {
  CLI::App* evaluate = app.add_subcommand("evaluate", "Mean loss of a checkpoint over a dataset");
  auto options = add_options(*evaluate);
  add_value(*evaluate, "--split", options->evaluation.split, "valid or train",
            config::one_of({"valid", "train"}));
  evaluate->add_flag("--json", options->evaluation.json,
                     "print JSON: the exact loss, per-byte perplexity");
  options->sources.add_to(*evaluate);
  evaluate->footer(evaluate_examples);
  evaluate->callback([options, &command] {
    set_job(command, "evaluate", options,
            [options](comm::Session& session, const train::RunConfig& config,
                      const std::string& checkpoint, std::int64_t sequence) {
              train::EvaluateOptions job = options->evaluation;
              job.checkpoint = checkpoint;
              job.sequence = sequence;
              train::evaluate(session, config, job);
            });
  });
}

void add_generate(CLI::App& app, Command& command) {
  CLI::App* generate = app.add_subcommand("generate", "Continue a text");
  auto options = add_options(*generate);
  train::GenerateOptions& job = options->generation;
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
                      const std::string& checkpoint, std::int64_t sequence) {
              train::GenerateOptions job = options->generation;
              job.checkpoint = checkpoint;
              job.sequence = sequence;
              train::generate(session, config, job);
            });
  });
}

}  // namespace trireme::cli
