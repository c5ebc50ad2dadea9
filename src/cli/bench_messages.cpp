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
  srun trireme bench collectives --device cuda --axis data --comm.data nccl
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

void add_sizes(CLI::App& app, SizeOptions& options, const std::string& types) {
  add_value(app, "--begin", options.sizes.begin, "bytes of the smallest buffer",
            config::at_least(1));
  add_value(app, "--end", options.sizes.end, "and of the largest", config::at_least(1));
  add_value(app, "--factor", options.sizes.factor, "from one size to the next",
            config::at_least(2));
  add_value(app, "--types", options.types, types);
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

comm::Reduction reduction_of(const std::string& name) {
  if (name == "sum") return comm::Reduction::sum;
  if (name == "max") return comm::Reduction::max;
  throw ConfigError("--reduction", name, "is no reduction", "use sum or max");
}

/// The grid of the configured layout.
comm::Grid grid_of(const bench::Place& place, const ResolvedConfig& resolved,
                   device::MemoryLedger& ledger) {
  const train::GridPlan plan = train::plan_grid(train::without_servers(resolved.config),
                                                place.session, place.device().is_host());
  return comm::Grid(place.session, plan.shape, ledger, plan.shard,
                    train::grid_options(resolved.config));
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
            "whose groups: tensor, data, pipeline,\nworld, stage, model, shard, replica,\n"
            "embedding",
            config::one_of({"tensor", "data", "pipeline", "world", "stage", "model", "shard",
                            "replica", "embedding"}));
  add_sizes(*app, options->sizes, "some of fp32,bf16,fp16,fp64,int64");
  add_value(*app, "--reduction", options->reduction, "sum or max", config::one_of({"sum", "max"}));
  add_value(*app, "--root", options->root, "rank of a group that broadcasts", config::at_least(0));
  auto common = add_bench_options(*app);
  app->footer(collectives_examples);
  app->callback([options, common, &command] {
    static_cast<void>(options->sizes.sizes.all());  // refused before anything is done
    set_job(
        command, "collectives", {"parallel", "comm", "device", "zero", "numerics"}, common,
        [=](const bench::Place& place, const ResolvedConfig& resolved, bench::Sheet& sheet) {
          bench::CollectiveOptions job{
              .group = group_of(options->axis),
              .sizes = options->sizes.sizes,
              .types = types_of("--types", options->sizes.types, sum_types()),
              .reduction = reduction_of(options->reduction),
              .root = static_cast<int>(options->root),
              .rounds = common->rounds,
              .check = !options->sizes.no_check};
          const auto names = bench::collective_names();
          for (const std::string& word : chosen_words("--operations", options->operations, names)) {
            const auto found = std::find(names.begin(), names.end(), word);
            job.operations.push_back(static_cast<bench::Collective>(found - names.begin()));
          }
          device::MemoryLedger ledger(place.device());
          comm::Grid grid = grid_of(place, resolved, ledger);
          comm::or_abandon(grid, [&] { bench::bench_collectives(place, grid, job, sheet); });
        });
  });
}

void add_bench_pipeline(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("pipeline", "Messages between neighboring stages");
  auto options = std::make_shared<SizeOptions>();
  add_sizes(*app, *options, "some of fp32,bf16,fp16,fp64,int64");
  auto common = add_bench_options(*app);
  app->footer(pipeline_examples);
  app->callback([options, common, &command] {
    static_cast<void>(options->sizes.all());
    set_job(command, "pipeline", {"parallel", "comm", "device"}, common,
            [=](const bench::Place& place, const ResolvedConfig& resolved, bench::Sheet& sheet) {
              const bool given =
                  resolved.fields.find("parallel.pipeline")->source != config::Source::built_in;
              train::RunConfig config = resolved.config;
              if (!given) config.parallel.pipeline = place.session.size() / config.parallel.tensor;
              const train::GridPlan plan = train::plan_grid(
                  train::without_servers(config), place.session, place.device().is_host());
              device::MemoryLedger ledger(place.device());
              comm::Grid grid(place.session, plan.shape, ledger, plan.shard,
                              train::grid_options(config));
              const bench::StageMessageOptions job{
                  .sizes = options->sizes,
                  .types = types_of("--types", options->types, sum_types()),
                  .rounds = common->rounds,
                  .check = !options->no_check};
              comm::or_abandon(grid, [&] { bench::bench_stage_messages(place, grid, job, sheet); });
            });
  });
}

}  // namespace trireme::cli
