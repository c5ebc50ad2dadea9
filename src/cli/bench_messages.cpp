// trireme bench collectives and pipeline
#include "trireme/bench/benchmarks.hpp"
#include "trireme/train/setup.hpp"

#include "bench.hpp"

namespace trireme::cli {

namespace {

constexpr const char* collectives_examples =
    R"(The groups are those that a run of this layout would make (parallel.*), their
comm.* sets how messages travel; all groups of the axis work at once.

Examples:
  mpirun -n 8 trireme bench collectives
  mpirun -n 8 trireme bench collectives --axis data --parallel.tensor 2
              --operations all_reduce,all_gather --types fp32,bf16
  srun --mpi=pmix trireme bench collectives --device cuda --axis data --comm.data nccl
       --begin 1024 --end 1e9 --factor 2 --json nccl.json)";
constexpr const char* pipeline_examples =
    R"(Without --parallel.pipeline all ranks are stages of one pipeline.

Examples:
  mpirun -n 4 trireme bench pipeline
  mpirun -n 8 trireme bench pipeline --parallel.pipeline 4 --end 1e8)";

struct SizeOptions {
  bench::Sizes sizes;
  std::string types = "fp32";
  bool no_check = false;
};

void add_sizes(CLI::App& app, SizeOptions& options) {
  cli::add_sizes(app, options.sizes, "buffer");
  add_value(app, "--types", options.types, "some of fp32,bf16,fp16,fp64,int64");
  app.add_flag("--no-check", options.no_check, "do not look whether results are right");
}

const std::vector<std::string>& sum_types() {
  static const std::vector<std::string> types{"fp32", "bf16", "fp16", "fp64", "int64"};
  return types;
}

comm::GroupKind group_of(const std::string& name) {
  for (const comm::GroupKind kind : comm::all_group_kinds) {
    if (comm::name_of(kind) == name) return kind;
  }
  throw ConfigError("--axis", name, "is no group", "use data, tensor, pipeline or world");
}

/// The grid of the configured layout.
comm::Grid grid_of(const bench::Place& place, const train::RunConfig& config,
                   device::MemoryLedger& ledger) {
  const train::GridPlan plan =
      train::plan_grid(train::without_servers(config), place.session, place.device().is_host());
  return comm::Grid(place.session, plan.shape, ledger, train::grid_options(config));
}

}  // namespace

void add_bench_collectives(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("collectives", "All-reduce and its kin, by groups");
  struct Options {
    SizeOptions sizes;
    std::string operations = "all", axis = "world", reduction = "sum";
    std::int64_t root = 0;
  };
  auto options = std::make_shared<Options>();
  add_value(*app, "--operations", options->operations,
            "all, or some of all_reduce,\nreduce_scatter, all_gather, broadcast,\nall_to_all, "
            "send_receive");
  add_value(*app, "--axis", options->axis,
            "whose groups: tensor, context, data,\npipeline, world, stage, model, shard,\n"
            "replica, embedding",
            config::one_of({"tensor", "context", "data", "pipeline", "world", "stage", "model",
                            "shard", "replica", "embedding"}));
  add_sizes(*app, options->sizes);
  add_value(*app, "--reduction", options->reduction, "sum or max", config::one_of({"sum", "max"}));
  add_value(*app, "--root", options->root, "rank of a group that broadcasts", config::at_least(0));
  finish_part(
      *app, command, collectives_examples, {"parallel", "comm", "device", "zero", "numerics"},
      [=](const bench::Place& place, const ResolvedConfig& resolved, const bench::Rounds& rounds,
          bench::Sheet& sheet) {
        bench::CollectiveOptions job{
            .group = group_of(options->axis),
            .sizes = options->sizes.sizes,
            .types = types_of("--types", options->sizes.types, sum_types()),
            .reduction = train::select<comm::Reduction>(
                "--reduction", options->reduction,
                {{"sum", comm::Reduction::sum}, {"max", comm::Reduction::max}}),
            .root = static_cast<int>(options->root),
            .rounds = rounds,
            .check = !options->sizes.no_check};
        const auto names = bench::collective_names();
        for (const std::string& word : chosen_words("--operations", options->operations, names)) {
          const auto found = std::find(names.begin(), names.end(), word);
          job.operations.push_back(static_cast<bench::Collective>(found - names.begin()));
        }
        device::MemoryLedger ledger(place.device());
        comm::Grid grid = grid_of(place, resolved.config, ledger);
        comm::or_abandon(grid, [&] { bench::bench_collectives(place, grid, job, sheet); });
      },
      [options] { static_cast<void>(options->sizes.sizes.all()); });
}

void add_bench_pipeline(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("pipeline", "Messages between neighboring stages");
  auto options = std::make_shared<SizeOptions>();
  add_sizes(*app, *options);
  finish_part(
      *app, command, pipeline_examples, {"parallel", "comm", "device"},
      [=](const bench::Place& place, const ResolvedConfig& resolved, const bench::Rounds& rounds,
          bench::Sheet& sheet) {
        const bool given =
            resolved.fields.find("parallel.pipeline")->source != config::Source::built_in;
        train::RunConfig config = resolved.config;
        if (!given) config.parallel.pipeline = place.session.size() / config.parallel.tensor;
        device::MemoryLedger ledger(place.device());
        comm::Grid grid = grid_of(place, config, ledger);
        const bench::StageMessageOptions job{
            .sizes = options->sizes,
            .types = types_of("--types", options->types, sum_types()),
            .rounds = rounds,
            .check = !options->no_check};
        comm::or_abandon(grid, [&] { bench::bench_stage_messages(place, grid, job, sheet); });
      },
      [options] { static_cast<void>(options->sizes.all()); });
}

}  // namespace trireme::cli
