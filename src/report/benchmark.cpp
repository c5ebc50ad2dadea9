#include "trireme/report/benchmark.hpp"

#include <algorithm>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;
using Repeats = std::vector<const Measured*>;

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

const json& config_of(const Run& run) { return run.attempt().run.at("config"); }

/// "auto" is none or cheap.
std::string recompute_of(const Run& run) {
  return config_of(run).at("parallel").value("recompute", "auto");
}

/// Why `run` is no run of the case, whatever the others are.
std::vector<std::string> faults_of(const Run& run, const BenchmarkCase& of) {
  if (!run.valid()) return run.faults;
  std::vector<std::string> faults;
  if (!run.incomplete.empty()) faults.push_back("incomplete: " + run.incomplete);
  const auto starts = std::count_if(run.attempts.begin(), run.attempts.end(),
                                    [](const Attempt& each) { return !each.steps.empty(); });
  if (starts != 1) {
    faults.push_back(fmt::format("{} attempts made its steps; a repeat is one start", starts));
  }
  const std::int64_t last = run.steps.empty() ? 0 : run.steps.back().step;
  if (last < run.facts.steps) {
    faults.push_back(fmt::format("unfinished: step {} of {}", last, run.facts.steps));
  }
  const std::map<std::string, json> recorded = flattened(config_of(run));
  for (const auto& [key, value] : of.fixed) {
    const auto found = recorded.find(key);
    if (found != recorded.end() && found->second == value) continue;
    faults.push_back(
        fmt::format("{}: {} in the case → {}", key, json_text(value),
                    found == recorded.end() ? "not recorded" : json_text(found->second)));
  }
  return faults;
}

/// In what two repeats differ that must agree; empty: in nothing.
std::string unlike(const Run& run, const Run& first) {
  const RunFacts &a = run.facts, &b = first.facts;
  std::vector<std::string> names;
  if (a.ranks != b.ranks) names.emplace_back("ranks");
  if (a.nodes != b.nodes) names.emplace_back("nodes");
  if (a.layout() != b.layout()) names.emplace_back("layout");
  if (a.batch != b.batch) names.emplace_back("train.batch");
  if (a.micro_batch != b.micro_batch) names.emplace_back("train.micro_batch");
  for (const std::string& key : differences(first, run)) names.push_back(key);
  return joined(names);
}

std::string plural(std::int64_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// "tensor 2 × pipeline 1 × data 4, zero 1, 1f1b, micro-batch 2, recompute auto".
std::string layout_of(const Run& run) {
  const RunFacts& facts = run.facts;
  std::string text = fmt::format("{}, zero {}, {}", facts.layout(), facts.zero, facts.schedule);
  if (facts.virtual_stages > 1) text += fmt::format(" of {} chunks", facts.virtual_stages);
  return text + fmt::format(", micro-batch {}, recompute {}", facts.micro_batch, recompute_of(run));
}

struct Convention {
  const char* name;
  double TokenFlops::*flops;
  const char* formula;
};
constexpr Convention conventions[] = {
    {"model", &TokenFlops::model, "6·N + 6·L·C·T: causal attention at half"},
    {"full_attention", &TokenFlops::full_attention, "6·N + 12·L·C·T: PaLM, Megatron-LM"},
    {"hardware", &TokenFlops::hardware, "full attention, and what recomputation repeats"}};

/// Operations per second of a rank.
double rate_of(const Submission& submission, const Convention& convention) {
  return submission.tokens_per_second.median * (submission.flops.*convention.flops) /
         submission.run->facts.ranks;
}

/// Of the peak; 0: there is none. MFU is that of the model's operations.
double share_of_peak(const Submission& submission, const Convention& convention) {
  if (submission.mfu.n == 0) return 0;
  return submission.mfu.median * (submission.flops.*convention.flops) / submission.flops.model;
}

void set_figures(const Repeats& repeats, Submission& submission) {
  submission.run = repeats.front()->run;
  submission.tokens_per_second = over_repeats(repeats, &Figures::tokens_per_second);
  submission.seconds = over_repeats(repeats, &Figures::seconds);
  submission.flops = token_flops(*submission.run);
  const bool peaks = std::all_of(repeats.begin(), repeats.end(),
                                 [](const Measured* each) { return each->figures.mfu.n > 0; });
  if (peaks) submission.mfu = over_repeats(repeats, &Figures::mfu);
}

}  // namespace

// Per token, with N weights in matrix products, L layers, width C, sequence T, vocabulary V.
//  model:          6·N + 6·L·C·T (model::Transformer::flops_per_token). Forward multiplies and adds
//                  once per weight, backward twice. Scores and their sum over values take 4·C·T for
//                  each layer forward, 12·C·T with backward; a causal mask leaves half.
//  full attention: 6·N + 12·L·C·T: Chowdhery et al., PaLM (arXiv 2204.02311), appendix B. With
//                  N = 12·L·C² + V·C it is 72·L·C²·(1 + T/(6·C) + V/(12·C·L)): Korthikanti et al.
//                  (arXiv 2205.05198), appendix A.
//  hardware:       parallel.recompute = full repeats the forward of all layers, not of the head:
//                  with the N above 96·L·C²·(1 + T/(6·C) + V/(16·L·C)), Narayanan et al. (arXiv
//                  2104.04473), equation 3. selective repeats attention's forward, 4·L·C·T.
//                  Korthikanti et al. add 12·L·C·T for it (a ratio of 1 + T/(6·C) of hardware to
//                  model operations), three times what is repeated. cheap repeats no product. What
//                  attention's backward recomputes inside its kernel counts nowhere.
TokenFlops token_flops(const Run& run) {
  const std::string where = (run.attempt().folder / "run.json").string();
  const json& model = object_at(config_of(run), "model", where);
  const auto number = [&](const char* key) {
    return static_cast<double>(integer_at(model, key, where));
  };
  const double attention = number("layers") * number("width") * number("sequence");
  const double head = number("vocabulary") * number("width");
  TokenFlops flops{.model = run.facts.flops_per_token};
  flops.full_attention = flops.model + 6 * attention;
  flops.hardware = flops.full_attention;
  const std::string recompute = recompute_of(run);
  if (recompute == "full") flops.hardware += (flops.full_attention - 6 * head) / 3;
  if (recompute == "selective") flops.hardware += 4 * attention;
  return flops;
}

Submission judge(const BenchmarkCase& of, const Report& report) {
  Submission submission{.of = of};
  const auto fault = [&](const Run& run, const std::string& text) {
    submission.faults.push_back(fmt::format("{}: {}", run.name, plain_text(text)));
  };
  Repeats repeats;
  std::size_t next = 0;
  for (const Run& run : report.runs) {
    const Measured* measured = run.valid() ? &report.measured[next++] : nullptr;
    const std::vector<std::string> faults = faults_of(run, of);
    for (const std::string& text : faults) fault(run, text);
    if (!faults.empty()) continue;
    const auto same = std::find_if(repeats.begin(), repeats.end(), [&](const Measured* other) {
      return other->run->attempt().run == run.attempt().run;
    });
    if (same != repeats.end()) {
      fault(run, fmt::format("has the run.json of {}; a copy is no repeat", (*same)->run->name));
      continue;
    }
    if (!repeats.empty()) {
      const Run& first = *repeats.front()->run;
      const std::string keys = unlike(run, first);
      if (!keys.empty()) fault(run, fmt::format("differs from {} in {}", first.name, keys));
    }
    repeats.push_back(measured);
    submission.names.push_back(run.name);
    for (const std::string& note : run.notes) {
      submission.shared_cores = submission.shared_cores || note.starts_with(shared_cores_text);
    }
  }
  if (std::ssize(repeats) < least_repeats) {
    submission.faults.push_back(fmt::format("{}; a case takes {} at least",
                                            plural(std::ssize(repeats), "valid repeat"),
                                            least_repeats));
  }
  if (!submission.faults.empty()) return submission;
  try {
    set_figures(repeats, submission);
  } catch (const std::exception& error) {
    fault(*repeats.front()->run, error.what());
  }
  return submission;
}

std::string submission_text(const Submission& submission) {
  std::string text =
      fmt::format("\nbenchmark {} (xxh3 {}): ", submission.of.name, submission.of.hash);
  if (!submission.faults.empty()) {
    text += "INVALID\n";
    for (const std::string& fault : submission.faults) text += "        " + fault + "\n";
    return text;
  }
  const RunFacts& facts = submission.run->facts;
  text += fmt::format(
      "{} tokens/s; {:.6g} tokens/s a rank; {} s a step; MFU {}{}; {}, {}{}; {}, {}; {}; {}; {}\n",
      estimate_text(submission.tokens_per_second),
      submission.tokens_per_second.median / facts.ranks, estimate_text(submission.seconds),
      estimate_text(submission.mfu, 100),
      submission.mfu.n > 0 ? " % of the " + facts.peak_kind + " peak" : std::string(),
      plural(facts.ranks, "rank"), plural(facts.nodes, "node"),
      submission.shared_cores ? ", ranks share cores" : "", plain_text(facts.device),
      plain_text(facts.processor), facts.precision, plain_text(layout_of(*submission.run)),
      plain_text(facts.versions));
  text += "operations        | of a token | TFLOP/s a rank | % of peak | convention\n";
  for (const Convention& each : conventions) {
    const double share = share_of_peak(submission, each);
    text += fmt::format("{:<17} | {:>10.4g} | {:>14.5g} | {:>9} | {}\n", each.name,
                        submission.flops.*each.flops, rate_of(submission, each) / 1e12,
                        share > 0 ? fmt::format("{:.1f}", 100 * share) : "-", each.formula);
  }
  return text;
}

json submission_json(const Submission& submission) {
  json result{{"case", submission.of.name},
              {"xxh3", submission.of.hash},
              {"valid", submission.faults.empty()}};
  if (!submission.faults.empty()) {
    result["faults"] = submission.faults;
    return result;
  }
  const RunFacts& facts = submission.run->facts;
  const json versions = submission.run->attempt().run.at("versions");
  result.update({{"tokens_per_second", estimate_json(submission.tokens_per_second)},
                 {"tokens_per_second_per_rank", submission.tokens_per_second.median / facts.ranks},
                 {"seconds_per_step", estimate_json(submission.seconds)},
                 {"mfu", estimate_json(submission.mfu)},
                 {"peak_kind", facts.peak_kind},
                 {"ranks", facts.ranks},
                 {"nodes", facts.nodes},
                 {"threads_per_rank", facts.threads},
                 {"shared_cores", submission.shared_cores},
                 {"device", facts.device},
                 {"processor", facts.processor},
                 {"precision", facts.precision},
                 {"layout", layout_of(*submission.run)},
                 {"versions", versions},
                 {"trireme", versions.value("trireme", json())},
                 {"runs", submission.names}});
  for (const Convention& each : conventions) {
    const double share = share_of_peak(submission, each);
    result["operations"][each.name] = {{"per_token", submission.flops.*each.flops},
                                       {"per_second_per_rank", rate_of(submission, each)},
                                       {"share_of_peak", share > 0 ? json(share) : json()}};
  }
  return result;
}

}  // namespace trireme::report
