// trireme bench step: a layout's messages on this machine, beside what `plan --machine` predicts.
#include <map>

#include "trireme/comm/agree.hpp"
#include "trireme/core/json.hpp"
#include "trireme/core/text.hpp"
#include "trireme/plan/step_time.hpp"
#include "trireme/plan/waiting_ops.hpp"
#include "trireme/report/statistics.hpp"
#include "trireme/train/setup.hpp"

#include "bench.hpp"

namespace trireme::cli {

namespace {

constexpr const char* step_examples =
    R"(Runs training steps of the configured layout, with all messages. Operations compute
nothing and wait as long as the machine file says, so that ranks may be more than
cores. Needs no dataset. The machine must have device.type = cpu.

Examples:
  mpirun -n 8 trireme bench step --machine machine.toml --config run.toml
  mpirun -n 64 trireme bench step --machine machine.toml --parallel.pipeline 8
               --train.batch 64 --parallel.schedule interleaved)";

using Bytes = std::map<std::string, std::int64_t>;  // by group

/// Seconds of each step, of the last rank, and what each rank sent in one.
struct MeasuredSteps {
  std::vector<double> seconds;
  std::vector<Bytes> sent;  // by rank; on the root alone
};

MeasuredSteps run_steps(const bench::Place& place, const model::Transformer& model,
                        const parallel::ReplicaOptions& options, comm::Grid& grid,
                        device::MemoryLedger& ledger, const bench::Rounds& rounds, bool documents) {
  Recorder recorder;
  const auto batches = parallel::blank_batches(options.stage.micro_batches, options.stage.sequences,
                                               model.config().sequence, documents);
  const std::int64_t steps = rounds.warmup + rounds.iterations;
  MeasuredSteps result;
  {
    parallel::Replica replica(model, options, grid, recorder, ledger);
    grid.reset_traffic();
    for (std::int64_t step = 0; step < steps; ++step) {
      place.world.barrier();  // not of the grid, whose messages are counted
      const auto begin = bench::Clock::now();
      replica.backward(batches);
      replica.update(0, step, 1);
      replica.wait();
      const double own = bench::seconds_since(begin);
      const double last = place.world.all_reduce(own, comm::Reduction::max);
      if (step >= rounds.warmup) result.seconds.push_back(last);
    }
  }  // messages count once they have ended
  nlohmann::json own = nlohmann::json::object();
  for (const auto& [group, traffic] : grid.traffic()) {
    const std::int64_t bytes = traffic.total().bytes;
    if (bytes > 0) own[group] = bytes / steps;
  }
  const std::string text = own.dump();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  for (const auto& theirs : place.world.all_gather_bytes({bytes, text.size()})) {
    result.sent.push_back(nlohmann::json::parse(theirs.begin(), theirs.end()).get<Bytes>());
  }
  return result;
}

void bench_step(const bench::Place& place, const ResolvedConfig& resolved, const std::string& file,
                const bench::Rounds& rounds, bench::Sheet& sheet) {
  train::RunConfig config = resolved.config;
  train::LayoutFacts facts = train::layout_facts(config, place.session);
  plan::Machine machine;
  comm::agree(place.world, [&] {
    machine = plan::Machine::read(file);
    if (!machine.on_host()) {
      throw ConfigError("--machine", file, "has device.type = gpu, and bench step waits as CPUs do",
                        "use a file with device.type = cpu");
    }
    // Ranks that wait are not slowed by messages.
    machine.node.slowdown = machine.network.slowdown = 1;
    machine.node.stretch = machine.network.stretch = 1;
    train::validate_layout(config, facts);
    train::check_method(config, facts);
  });
  machine.ranks_per_node = place.session.node_size();
  const comm::GridShape shape = train::grid_shape(config, facts);
  parallel::ReplicaOptions options =
      train::replica_options(config, train::stage_options(config, shape, facts), place.threads);
  const bool documents = config.data.document_mask;
  plan::StepTimes predicted;
  plan::StageClasses stages;
  comm::agree(place.world, [&] {
    if (place.session.rank() > 0) return;
    const model::Transformer planned(config.model);
    stages = plan::trace_stages(planned, options, shape, true, documents);
    predicted = plan::simulate(shape, stages.classes, stages.class_of, machine);
  });
  options.make_ops = [&](device::MemoryLedger&, int, bool) {
    return std::make_unique<plan::WaitingOps>(machine);
  };
  const model::Transformer model(config.model);
  device::MemoryLedger ledger(place.device());
  comm::Grid grid(place.session, shape, ledger, train::grid_options(config));
  const MeasuredSteps measured = comm::or_abandon(
      grid, [&] { return run_steps(place, model, options, grid, ledger, rounds, documents); });
  if (place.session.rank() > 0) return;
  std::int64_t wrong = 0;
  for (const plan::RankClass& each : stages.classes) {
    Bytes traced = each.trace.sent(), sent = measured.sent[static_cast<std::size_t>(each.rank)];
    // All ranks sum a few bytes, more than 8 of them along a tree that traces do not have.
    for (Bytes* bytes : {&traced, &sent})
      bytes->erase(std::string(name_of(comm::GroupKind::world)));
    if (sent == traced) continue;
    ++wrong;
    sheet.note("differs", fmt::format("rank {} sent {}, traced were {}", each.rank,
                                      nlohmann::json(sent).dump(), nlohmann::json(traced).dump()));
  }
  // The host's work between steps is not part of these.
  const double expected = predicted.seconds - machine.device.step_ms * 1e-3;
  const double median = report::quantile(measured.seconds, 0.5);
  sheet.note("machine", file);
  sheet.note("grid", shape.to_string());
  sheet.note("traffic", fmt::format("compared of {}", counted(std::ssize(stages.classes), "rank")));
  sheet.result_columns({{"predicted", "us", 12}, {"median", "us", 12}, {"error", "%", 7}}, {});
  sheet.result({.name = "step",
                .iterations = rounds.iterations,
                .times = bench::times_of(measured.seconds),
                .threads = place.session.size(),
                .counters = {{"predicted_us", 1e6 * expected}, {"median_us", 1e6 * median}}},
               {bench::microseconds(expected), bench::microseconds(median),
                fmt::format("{:+.1f}", 100 * (expected / median - 1))},
               {}, wrong);
}

}  // namespace

void add_bench_step(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("step", "Messages of a layout's step, without computing");
  auto machine = std::make_shared<std::string>();
  app->add_option("--machine", *machine, "a machine file (docs/step-time.md)")
      ->required()
      ->type_name("FILE");
  finish_part(
      *app, command, step_examples,
      {"model", "data", "train", "parallel", "zero", "context", "precision", "numerics", "comm",
       "device", "optim"},
      [=](const bench::Place& place, const ResolvedConfig& resolved, const bench::Rounds& rounds,
          bench::Sheet& sheet) { bench_step(place, resolved, *machine, rounds, sheet); },
      {}, {.warmup = 1, .iterations = 5});
}

}  // namespace trireme::cli
