// What the parts of `trireme bench` share: options, and the way from there to a table and JSON.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/bench/measure.hpp"

#include "commands.hpp"

namespace trireme::cli {

struct BenchOptions {
  bench::Rounds rounds;
  RunSources sources;
  std::string json;
};
/// --iterations, --warmup, --json, --device and --config.
std::shared_ptr<BenchOptions> add_bench_options(CLI::App& app);

using BenchJob = std::function<void(const bench::Place&, const ResolvedConfig&, bench::Sheet&)>;
/// Makes `job` what the command does: with the configuration, of which it uses only `sections` (a
/// setting of another one is refused), and writes its figures. The command fails where any result
/// is wrong.
void set_job(Command& command, const std::string& part, const std::vector<std::string>& sections,
             std::shared_ptr<BenchOptions> options, const BenchJob& job);

/// Parts of "a,b,c".
std::vector<std::string> words_of(const std::string& list);
/// They, each one of `known`; all of these for "all". Throws ConfigError that names `flag`.
std::vector<std::string> chosen_words(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known);
std::vector<DType> types_of(const std::string& flag, const std::string& list,
                            const std::vector<std::string>& known);
/// Whole numbers above 0. Throws ConfigError that names `flag`.
std::vector<std::int64_t> numbers_of(const std::string& flag, const std::string& list);

void add_bench_gemm(CLI::App& bench, Command& command);
void add_bench_copy(CLI::App& bench, Command& command);
void add_bench_attention(CLI::App& bench, Command& command);
void add_bench_collectives(CLI::App& bench, Command& command);
void add_bench_pipeline(CLI::App& bench, Command& command);
void add_bench_io(CLI::App& bench, Command& command);

}  // namespace trireme::cli
