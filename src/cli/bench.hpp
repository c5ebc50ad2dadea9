// What the parts of `trireme bench` share: options, and the way from there to a table and JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/bench/benchmarks.hpp"
#include "trireme/bench/measure.hpp"

#include "commands.hpp"

namespace trireme::cli {

using BenchJob = std::function<void(const bench::Place&, const ResolvedConfig&,
                                    const bench::Rounds&, bench::Sheet&)>;
/// Gives a part the options of all parts (--iterations, --warmup, --json, --device and --config)
/// and makes `job` what it does: with the configuration, of which it uses only `sections` (a
/// setting of another one is refused), it writes its figures. The command fails where any result is
/// wrong. `check` refuses options before anything is done. `rounds`: unless the user names others.
void finish_part(CLI::App& part, Command& command, const char* examples,
                 const std::vector<std::string>& sections, const BenchJob& job,
                 const std::function<void()>& check = {}, const bench::Rounds& rounds = {});
/// --begin, --end and --factor of `what`.
void add_sizes(CLI::App& part, bench::Sizes& sizes, const std::string& what);

/// Parts of "a,b,c", each one of `known`; all of these for "all". Throws ConfigError that names
/// `flag`.
std::vector<std::string> chosen_words(const std::string& flag, const std::string& list,
                                      const std::vector<std::string>& known);
std::vector<DType> types_of(const std::string& flag, const std::string& list,
                            const std::vector<std::string>& known);

void add_bench_gemm(CLI::App& bench, Command& command);
void add_bench_copy(CLI::App& bench, Command& command);
void add_bench_attention(CLI::App& bench, Command& command);
void add_bench_collectives(CLI::App& bench, Command& command);
void add_bench_pipeline(CLI::App& bench, Command& command);
void add_bench_io(CLI::App& bench, Command& command);
void add_bench_machine(CLI::App& bench, Command& command);
void add_bench_step(CLI::App& bench, Command& command);

}  // namespace trireme::cli
