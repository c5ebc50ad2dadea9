// trireme bench
#include "bench.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::cli {

namespace {

constexpr const char* bench_examples = R"(Examples:
  trireme bench gemm --model.preset gpt2 --rows 1024
  mpirun -n 4 trireme bench collectives --axis data --parallel.tensor 2
`trireme bench PART --help` lists its options; docs/benchmarks.md its columns.)";

struct BenchOptions {
  bench::Rounds rounds;
  RunSources sources;
  std::string json;
};

void run_part(const std::string& part, const std::vector<std::string>& sections,
              const BenchOptions& options, const BenchJob& job, comm::Session& session,
              const std::vector<Setting>& given) {
  const std::vector<Setting> settings = options.sources.with_device(given);
  for (const Setting& setting : settings) {
    const std::string section = setting.key.substr(0, setting.key.find('.'));
    if (std::find(sections.begin(), sections.end(), section) != sections.end()) continue;
    throw AgreedError("--{}: bench {} does not use it; it uses the sections {}", setting.key, part,
                      fmt::join(sections, ", "));
  }
  ResolvedConfig resolved(options.sources.file, settings, session);
  const train::ComputeDevice computes(resolved.config.device, session);
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  const bench::Place place{session, *world, computes,
                           train::threads_of_rank(resolved.config.parallel, session)};
  bench::Sheet sheet(session.rank() == 0);
  sheet.note("trireme", "bench " + part);
  sheet.note("device", computes.device().name());
  sheet.note("ranks", session.size());
  sheet.note("threads_per_rank", place.threads);
  sheet.note("iterations", options.rounds.iterations);
  sheet.note("warmup", options.rounds.warmup);
  job(place, resolved, options.rounds, sheet);
  comm::agree(*world, [&] {
    if (session.rank() > 0 || options.json.empty()) return;
    write_output(options.json, json_text(sheet.json(), 2) + "\n");
  });
  print_on_root(session, fmt::format("# wrong results: {}\n", sheet.wrong()));
  if (sheet.wrong() == 0) return;
  throw AgreedError(
      "bench {}: {} results are wrong (column #wrong), so its times mean nothing; check the "
      "machine and its libraries",
      part, sheet.wrong());
}

}  // namespace

std::vector<DType> types_of(const std::string& flag, const std::string& list,
                            const std::vector<std::string>& known) {
  std::vector<DType> types;
  for (const std::string& word : chosen_words(flag, list, known)) {
    types.push_back(dtype_from_name(word));
  }
  return types;
}

std::vector<std::string> chosen_words(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known) {
  std::vector<std::string> words = words_of(list);
  if (words.size() == 1 && words.front() == "all") return known;
  for (const std::string& word : words) {
    std::string target;
    config::Field field{.key = flag, .rule = config::one_of(known), .target = &target};
    field.set_text(word, config::Source::command_line, flag);
  }
  return words;
}

void add_sizes(CLI::App& part, bench::Sizes& sizes, const std::string& what) {
  add_value(part, "--begin", sizes.begin, "bytes of the smallest " + what, config::at_least(1));
  add_value(part, "--end", sizes.end, "and of the largest", config::at_least(1));
  add_value(part, "--factor", sizes.factor, "from one size to the next", config::at_least(2));
}

void finish_part(CLI::App& part, Command& command, const char* examples,
                 const std::vector<std::string>& sections, const BenchJob& job,
                 const std::function<void()>& check, const bench::Rounds& rounds) {
  auto options = std::make_shared<BenchOptions>(BenchOptions{.rounds = rounds});
  add_value(part, "--iterations", options->rounds.iterations, "timed repetitions of each",
            config::at_least(1));
  add_value(part, "--warmup", options->rounds.warmup, "untimed ones before", config::at_least(0));
  part.add_option("--json", options->json, "write all figures too, in Google Benchmark's\nlayout")
      ->type_name("FILE");
  options->sources.add_to(part);
  part.footer(examples);
  part.callback([=, name = part.get_name(), &command] {
    if (check) check();
    command.run = [=](comm::Session& session, const std::vector<Setting>& given) {
      run_part(name, sections, *options, job, session, given);
      return 0;
    };
  });
}

void add_bench(CLI::App& app, Command& command) {
  CLI::App* bench = app.add_subcommand("bench", "Speed of the parts: products, messages, files");
  bench->require_subcommand(0, 1);
  bench->footer(bench_examples);
  for (const auto add : {add_bench_gemm, add_bench_copy, add_bench_attention, add_bench_collectives,
                         add_bench_pipeline, add_bench_io, add_bench_machine, add_bench_step}) {
    add(*bench, command);
  }
  bench->callback([bench] {
    if (!bench->get_subcommands().empty()) return;
    throw UsageError(
        "bench: name a part: gemm, copy, attention, collectives, pipeline, io, machine or step");
  });
}

}  // namespace trireme::cli
