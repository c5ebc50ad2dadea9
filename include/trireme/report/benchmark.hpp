// Benchmark cases: fixed workloads that computing centers report, and whether runs are repeats of
// one. docs/benchmark-cases.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/report/page.hpp"

namespace trireme::report {

/// Repeats of a case, at least.
inline constexpr std::int64_t least_repeats = 5;

struct BenchmarkCase {
  std::string name;                             // "gpt-175b-v1"
  std::string hash;                             // xxh3 of its file, 16 hexadecimal digits
  std::map<std::string, nlohmann::json> fixed;  // the keys that it sets, "train.batch"
};

/// Floating-point operations of training on one token, by three conventions.
struct TokenFlops {
  double model = 0;           // causal attention at half: MFU is of these
  double full_attention = 0;  // all pairs of tokens
  double hardware = 0;        // the same, and what parallel.recompute repeats
};
/// Of a valid run, by its record. Throws Error where that lacks a key of the model.
TokenFlops token_flops(const Run& run);

/// The runs of a report as repeats of a case. INVALID where there are `faults`.
struct Submission {
  BenchmarkCase of;
  std::vector<std::string> faults;
  // Of valid ones:
  const Run* run = nullptr;             // the first
  std::vector<std::string> names;       // of all
  Estimate tokens_per_second, seconds;  // over the medians of the runs
  Estimate mfu;                         // n = 0 where a run has none
  TokenFlops flops;
  bool shared_cores = false;
};
/// Points into `report`.
Submission judge(const BenchmarkCase& of, const Report& report);

/// The line to submit and a table of its conventions; where it is INVALID the reasons.
std::string submission_text(const Submission& submission);
nlohmann::json submission_json(const Submission& submission);

}  // namespace trireme::report
