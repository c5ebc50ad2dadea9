// trireme bench machine: a machine file for `trireme plan --machine`.
#include <algorithm>
#include <iterator>
#include <set>

#include <unistd.h>

#include "trireme/comm/agree.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/text.hpp"
#include "trireme/plan/fit_machine.hpp"
#include "trireme/plan/measure_machine.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/train/setup.hpp"

#include "bench.hpp"

namespace trireme::cli {

namespace {

constexpr const char* machine_examples =
    R"(Every rank trains small models by itself, operation by operation; then groups
inside a node and between nodes communicate. The constants of a machine file are
fitted to that. Start it on two nodes with as many ranks as a run has on each.

Examples:
  mpirun -n 2 trireme bench machine --output machine.toml --parallel.threads 1
  jobs/launch.sh bench machine --output machine.toml --device.type cuda)";

/// A model that is trained by every rank alone.
struct Trial {
  std::int64_t width = 0, heads = 0, sequence = 0, sequences = 0;
  bool llama = false;
};

/// Widths and rows by factors of two and four, so that shapes between them are near to some.
std::vector<Trial> trials_on(bool host) {
  if (host) {
    return {{128, 4, 64, 1},   {128, 2, 256, 4},   {256, 4, 64, 1},       {256, 4, 128, 2},
            {256, 4, 256, 8},  {512, 8, 64, 1},    {512, 8, 128, 2},      {512, 8, 256, 4},
            {512, 4, 512, 4},  {768, 12, 128, 1},  {768, 12, 128, 4},     {1024, 16, 64, 1},
            {1024, 8, 256, 1}, {1024, 16, 512, 2}, {512, 8, 256, 2, true}};
  }
  return {{1024, 8, 1024, 1},  {1024, 8, 1024, 16},       {2048, 16, 2048, 1}, {2048, 16, 2048, 4},
          {4096, 32, 1024, 1}, {4096, 32, 2048, 4, true}, {8192, 64, 2048, 1}};
}

model::ModelConfig model_of(const Trial& trial, bool host) {
  model::ModelConfig config;
  config.layers = 2;
  config.width = trial.width;
  config.heads = trial.heads;
  config.sequence = trial.sequence;
  config.vocabulary = host ? 2048 : 32768;
  if (trial.llama) {
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.bias = false;
    config.tied = false;
  }
  config.resolve();
  return config;
}

/// Whether ranks of a node are neighbors, as many on each.
bool in_blocks(const comm::Session& session) {
  for (int rank = 0; rank < session.size(); ++rank) {
    const int first = rank - rank % session.node_size();
    if (session.nodes()[static_cast<std::size_t>(rank)] != first) return false;
  }
  return session.size() % session.node_size() == 0;
}

/// "products/bf16".
std::string name_of(const plan::Work& work) {
  using Kind = plan::Work::Kind;
  switch (work.kind) {
    case Kind::product:
      return fmt::format("products/{}", trireme::name_of(work.type));
    case Kind::attention:
      return fmt::format("attention/{}", trireme::name_of(work.type));
    case Kind::attention_backward:
      return fmt::format("attention_backward/{}", trireme::name_of(work.type));
    case Kind::memory:
      return "memory";
    case Kind::update:
      return "optimizer";
  }
  no_case_for(work.kind);
}

std::string percent(double part) { return fmt::format("{:.1f}", 100 * part); }

/// One row for each group of measurements: how many, their spread, and the fit's error.
class Table {
 public:
  explicit Table(bench::Sheet& sheet) : sheet_(sheet) {
    sheet_.columns(
        {{"measured", "", 24}, {"number", "", 7}, {"spread", "%", 7}, {"error", "%", 7}});
  }
  void add(const plan::Machine& machine, const std::vector<plan::MeasuredWork>& all) {
    std::map<std::string, std::vector<plan::MeasuredWork>> groups;
    for (const plan::MeasuredWork& each : all) {
      const plan::Work& work = each.work;
      const std::string name = name_of(work);
      groups[name].push_back(each);
      sheet_.add({.name = fmt::format("{}/{}/{}x{}x{}/count:{}/bytes:{}", name, work.name.text(),
                                      work.m, work.n, work.k, work.count, work.bytes),
                  .iterations = 1,
                  .times = {each.seconds, each.seconds, each.seconds, each.seconds},
                  .counters = {{"spread", each.spread},
                               {"share", each.share},
                               {"fitted_us", 1e6 * machine.seconds(work)}}});
    }
    for (const auto& [name, group] : groups) {
      double spread = 0, share = 0;
      for (const plan::MeasuredWork& each : group) {
        spread += each.share * each.spread;
        share += each.share;
      }
      sheet_.row({name, std::to_string(group.size()), percent(spread / share),
                  percent(plan::mean_error(machine, group))});
    }
  }
  void add(const plan::Machine& machine, const std::string& name,
           const std::vector<plan::MeasuredOperation>& all) {
    double spread = 0;
    for (const plan::MeasuredOperation& each : all) {
      spread += each.spread / static_cast<double>(all.size());
      sheet_.add(
          {.name = fmt::format("{}/{}/{}", name, comm::name_of(each.operation.kind),
                               each.operation.bytes),
           .iterations = 1,
           .times = {each.seconds, each.seconds, each.seconds, each.seconds},
           .counters = {{"spread", each.spread},
                        {"fitted_us", 1e6 * machine.seconds(each.operation, each.placement)}}});
    }
    sheet_.row({name, std::to_string(all.size()), percent(spread),
                percent(plan::mean_error(machine, all))});
  }

 private:
  bench::Sheet& sheet_;
};

/// Steps of every trial that fits into memory, in each type; all ranks at once, as they train. Of
/// each trial the fastest quarter: other programs on the machine seldom disturb all passes.
std::vector<plan::TimedStep> time_trials(const bench::Place& place, const std::vector<DType>& types,
                                         const bench::Rounds& rounds, double memory_gib) {
  device::Device& device = place.device();
  const bool host = device.is_host();
  constexpr double most_seconds = 10;  // of a model's steps
  constexpr int passes = 4;            // over all models
  const std::vector<Trial> trials = trials_on(host);
  std::vector<std::vector<plan::TimedStep>> steps(types.size() * trials.size());
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Trial& trial = trials[i % trials.size()];
      const model::ModelConfig config = model_of(trial, host);
      const model::Transformer model(config);
      // Parameters, gradients, moments, and as much again for activations.
      const double bytes = 32.0 * static_cast<double>(model.table().elements());
      const int sharing = host ? place.session.node_size() : 1;  // of the memory
      if (bytes > memory_gib * (1 << 30) / sharing) continue;
      device::MemoryLedger ledger(device);
      comm::Grid alone({}, 0, ledger, {});
      parallel::ReplicaOptions options = plan::one_rank_options(
          host, types[i / trials.size()], trial.sequences, model::Recompute::none);
      // Gradients that are added to earlier ones take longer, which shows where rows are few.
      if (trial.sequences == 1) options.stage.micro_batches = 2;
      options.threads = place.threads;
      options.make_ops = place.computes.make_ops(true);
      place.world.barrier();
      std::vector<plan::TimedStep> own =
          plan::time_steps(model, options, alone, device, static_cast<int>(rounds.warmup),
                           static_cast<int>(rounds.iterations), most_seconds);
      std::move(own.begin(), own.end(), std::back_inserter(steps[i]));
    }
  }
  std::vector<plan::TimedStep> fastest;
  for (std::vector<plan::TimedStep>& of_trial : steps) {
    // Ranks may have made different numbers of steps where these take seconds.
    const auto count = static_cast<std::size_t>(
        -place.world.all_reduce(-static_cast<std::int64_t>(of_trial.size()), comm::Reduction::max));
    std::vector<std::pair<double, std::size_t>> slowest;  // of all ranks, and which step
    for (std::size_t i = 0; i < count; ++i) {
      slowest.emplace_back(place.world.all_reduce(of_trial[i].seconds, comm::Reduction::max), i);
    }
    std::sort(slowest.begin(), slowest.end());
    slowest.resize((count + 3) / 4);
    for (const auto& [seconds, i] : slowest) fastest.push_back(std::move(of_trial[i]));
  }
  return fastest;
}

void measure_work(const bench::Place& place, const std::vector<DType>& types,
                  const bench::Rounds& rounds, plan::Machine& machine, Table& table) {
  device::Device& device = place.device();
  machine.memory.gb_per_s =
      place.world.all_reduce(plan::measure_copy(device), comm::Reduction::sum) /
      place.session.size() / 1e9;
  const std::vector<plan::TimedStep> steps =
      time_trials(place, types, rounds, machine.device.memory_gib);
  const std::vector<plan::MeasuredWork> works = plan::measured_works(place.world, steps);
  machine = plan::fit_works(machine, works);
  table.add(machine, works);
  if (device.is_host()) machine = plan::fit_host(machine, steps, true);
}

void measure_links(const bench::Place& place, const train::RunConfig& config,
                   plan::Machine& machine, Table& table) {
  const int ranks = place.session.node_size(), nodes = place.session.size() / ranks;
  device::Device& device = place.device();
  device::MemoryLedger ledger(device);
  comm::GridShape shape;
  shape.degree[static_cast<std::size_t>(comm::Axis::tensor)] = ranks;
  shape.degree[static_cast<std::size_t>(comm::Axis::data)] = nodes;
  comm::Grid grid(place.session, shape, ledger, train::grid_options(config));
  comm::or_abandon(grid, [&] {
    const auto ops = [&] {
      const parallel::MakeOps make = place.computes.make_ops();
      return make ? make(ledger, place.threads, false)
                  : ops::make_cpu_ops(place.threads, &ledger, false);
    }();
    const auto measure = [&](comm::GroupKind kind, const plan::Placement& placement,
                             const char* name) {
      const auto all = plan::measure_links(machine, grid, kind, placement, *ops, device);
      table.add(machine, name, all);
    };
    if (ranks > 1) {
      measure(comm::GroupKind::tensor, {.ranks = ranks}, "collectives/node");
    }
    if (nodes > 1) {
      measure(comm::GroupKind::data, {.ranks = nodes, .nodes = nodes, .sharing = ranks},
              "collectives/network");
    }
    if (!device.is_host()) machine.device.launch_us = 1e6 * plan::measure_launch(*ops, device);
  });
}

/// Three digits of every measured number.
double rounded(double value) { return std::stod(fmt::format("{:.3g}", value)); }

}  // namespace

void add_bench_machine(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("machine", "A machine file for plan --machine");
  struct Options {
    std::string output, types = "all";
  };
  auto options = std::make_shared<Options>();
  app->add_option("--output", options->output, "the machine file")->required()->type_name("FILE");
  add_value(*app, "--types", options->types,
            "some of fp32,bf16,fp16; all: those that\nthe device computes in");
  finish_part(
      *app, command, machine_examples, {"parallel", "comm", "device"},
      [=](const bench::Place& place, const ResolvedConfig& resolved, const bench::Rounds& rounds,
          bench::Sheet& sheet) {
        const comm::Session& session = place.session;
        if (!in_blocks(session)) {
          throw AgreedError(
              "bench machine: the ranks of a node must be neighbors, as many on each node; place "
              "them in blocks");
        }
        std::vector<DType> types = types_of("--types", options->types, {"fp32", "bf16", "fp16"});
        std::erase_if(types, [&](DType type) { return !place.computes.computes_in(type); });
        if (types.empty()) {
          throw ConfigError("--types", options->types, "this device computes in none of them",
                            "leave it out");
        }
        const int ranks = session.node_size(), nodes = session.size() / ranks;
        plan::Machine machine;
        machine.ranks_per_node = ranks;
        machine.device.type = place.device().is_host() ? "cpu" : "gpu";
        const double bytes = place.device().is_host()
                                 ? static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                                       static_cast<double>(::sysconf(_SC_PAGESIZE))
                                 : static_cast<double>(place.computes.free_bytes().value_or(0));
        // The least of all ranks, which decide by it alike what they measure.
        machine.device.memory_gib = std::max(
            0.001, -place.world.all_reduce(-rounded(bytes / (1 << 30)), comm::Reduction::max));
        machine.links.collectives = place.device().is_host() ? "direct" : "ring";
        Table table(sheet);
        measure_work(place, types, rounds, machine, table);
        measure_links(place, resolved.config, machine, table);
        machine.name = place.device().name();
        machine.source =
            fmt::format("trireme bench machine on {} of {}, {} each{}", counted(nodes, "node"),
                        counted(ranks, "rank"), counted(place.threads, "thread"),
                        ranks == 1   ? "; links.node is not measured"
                        : nodes == 1 ? "; links.network is not measured"
                                     : "");
        sheet.note("source", machine.source);
        comm::agree(place.world, [&] {
          if (session.rank() > 0) return;
          write_output(options->output, machine.to_toml());
        });
        sheet.note("written", config::one_line(options->output));
      },
      {}, {.warmup = 1, .iterations = 3});
}

}  // namespace trireme::cli
