// Finds where a run loses speed, and what to do about it. Rules: docs/reports.md.
#include <algorithm>
#include <map>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"
#include "trireme/schedule/simulate.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

double section(const RankAccount& rank, const char* name) {
  const auto found = rank.sections.find(name);
  return found == rank.sections.end() ? 0 : found->second;
}

/// Seconds of all steps of the chosen attempt, with warm-up, which sections cover too.
double step_seconds(const Run& run) {
  double sum = 0;
  for (const RecordedStep& step : run.attempt().steps) sum += step.seconds;
  return sum;
}

template <class Value>
double mean_over_ranks(const Run& run, const Value& value) {
  double sum = 0;
  std::int64_t ranks = 0;
  for (const RankAccount& rank : run.ranks) {
    if (rank.server) continue;
    sum += value(rank);
    ++ranks;
  }
  return ranks == 0 ? 0 : sum / static_cast<double>(ranks);
}

/// Seconds that a rank computed in the steps of its attempt: forward and backward without the waits
/// and the tensor axis's sums inside them.
double compute_seconds(const Run& run, const RankAccount& rank) {
  const auto tensor = rank.communication.find("tensor");
  const double sums =
      tensor == rank.communication.end()
          ? 0
          : tensor->second.seconds * static_cast<double>(run.attempt().steps.size());
  return std::max(0.0, section(rank, "forward") + section(rank, "backward") +
                           section(rank, "forward and backward") -
                           section(rank, "wait for pipeline") - section(rank, "wait for shards") -
                           sums);
}

double percent(double share) { return 100 * share; }

class Diagnosis {
 public:
  Diagnosis(const Run& run, const ReadOptions& options)
      : run_(run), options_(options), facts_(run.facts), total_(step_seconds(run)) {}

  std::vector<Finding> findings() {
    impossible_mfu();
    loader();
    checkpoints();
    steadiness();
    prediction();
    const bool host = facts_.device == "cpu";
    if (host && !run_.ranks.empty() && total_ > 0) {
      pipeline();
      gradients();
      averages();
      tensor();
      stragglers();
      volumes();
    }
    for (const std::string& note : run_.notes) {
      if (note.starts_with(shared_cores_text)) add("shared-cores", 1, note);
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Finding& a, const Finding& b) { return a.share > b.share; });
    return std::move(found_);
  }

 private:
  void add(const char* rule, double share, std::string text) {
    found_.push_back({rule, share, std::move(text)});
  }
  double share(const char* name) const {
    return mean_over_ranks(run_, [&](const RankAccount& rank) { return section(rank, name); }) /
           total_;
  }

  /// The share of a step that stages idle at best; 0 where the schedule is not one by name.
  static double idle(const std::string& schedule, int stages, std::int64_t micro_batches,
                     int virtual_stages) {
    try {
      const auto made = schedule::make_schedule(schedule, stages, static_cast<int>(micro_batches),
                                                virtual_stages);
      const double bubble =
          simulate(made, schedule::Costs::uniform(stages * virtual_stages, 1, 1, 1)).bubble;
      return bubble / (1 + bubble);
    } catch (const Error&) {
      return 0;
    }
  }

  void pipeline() {
    const double waits = share("wait for pipeline");
    if (facts_.pipeline < 2 || waits < 0.10) return;
    const std::int64_t m = facts_.micro_batches();
    std::string text =
        fmt::format("{:.0f} % of the step is waiting for the pipeline", percent(waits));
    const double best = idle(facts_.schedule, facts_.pipeline, m, facts_.virtual_stages);
    if (best > 0) {
      text +=
          fmt::format(" (bubble of {} with {} stages and {} micro-batches, equal stages: {:.0f} %)",
                      facts_.schedule, facts_.pipeline, m, percent(best));
    }
    const std::string remedy = pipeline_remedy(m, best);
    add("pipeline-bubble", waits, text + (remedy.empty() ? "" : ": " + remedy));
  }

  /// How to lower the bubble: more micro-batches of the same batch, or interleaving.
  std::string pipeline_remedy(std::int64_t m, double best) const {
    std::string remedy;
    const std::int64_t sequences = facts_.batch / facts_.data;  // of a replica
    std::int64_t more = 0;
    double then = best;
    for (std::int64_t candidate = m + 1; candidate <= std::min<std::int64_t>(sequences, 512);
         ++candidate) {
      if (sequences % candidate != 0 || then < 0.10) continue;
      more = candidate;
      then = idle(facts_.schedule, facts_.pipeline, candidate, facts_.virtual_stages);
    }
    if (more > 0 && best > 0) {
      remedy = fmt::format("use {} micro-batches (train.micro_batch = {}; {:.0f} %)", more,
                           sequences / more, percent(then));
    } else {
      remedy = "use a larger train.batch, and with it more micro-batches";
    }
    const bool fits = facts_.virtual_stages == 1 && m % facts_.pipeline == 0 &&
                      facts_.layers >= 2 * facts_.pipeline;
    const double interleaved = fits ? idle("interleaved", facts_.pipeline, m, 2) : 0;
    if (interleaved > 0 && interleaved < best) {
      remedy += fmt::format(
          ", or parallel.schedule = interleaved with parallel.virtual_stages = 2 ({:.0f} %)",
          percent(interleaved));
    }
    return remedy;
  }

  void gradients() {
    const double waits = share("wait for gradients") + share("wait for shards") +
                         share("gather parameters") + share("wait for servers");
    if (facts_.data < 2 || waits < 0.05) return;
    const double reductions = share("reduce gradients (overlapped)");
    std::string text = fmt::format(
        "data-parallel communication is not hidden: {:.0f} % of the step waits for gradients and "
        "parameters, while reductions take {:.0f} %",
        percent(waits), percent(reductions));
    const nlohmann::json config = run_.attempt().run.value("config", nlohmann::json::object());
    const nlohmann::json parallel = config.value("parallel", nlohmann::json::object());
    const bool overlaps = parallel.value("overlap", true);
    if (facts_.servers > 0) {
      text += ": use more parallel.servers, or data_parallel.gradients = bf16";
      return add("exposed-gradients", waits, text);
    }
    add("exposed-gradients", waits,
        text + (overlaps
                    ? ": use a larger train.batch (more work per exchange), fewer data ranks or "
                      "threads instead of ranks"
                    : ": set parallel.overlap = true"));
  }

  void averages() {
    const double waits = share("wait for workers"), all = waits + share("average weights");
    if (facts_.method != "average" || facts_.data < 2 || all < 0.05) return;
    add("exposed-averages", all,
        fmt::format("{:.0f} % of the steps' time is averages, {:.0f} % waiting for the slowest "
                    "worker: raise average.every",
                    percent(all), percent(waits)));
  }

  void tensor() {
    const double seconds = mean_over_ranks(run_, [](const RankAccount& rank) {
      double sum = 0;
      for (const char* group : {"tensor", "kv"}) {
        const auto found = rank.communication.find(group);
        if (found != rank.communication.end()) sum += found->second.seconds;
      }
      return sum;
    });
    const double taken = seconds * static_cast<double>(run_.attempt().steps.size()) / total_;
    if (facts_.tensor < 2 || taken < 0.15) return;
    add("tensor-communication", taken,
        fmt::format("{:.0f} % of the step is sums over {} tensor ranks, of which products hide a "
                    "part at most: use a lower parallel.tensor, or keep its ranks on one node",
                    percent(taken), facts_.tensor));
  }

  /// Ranks of one stage do equal work; stages should.
  void stragglers() {
    std::map<int, std::vector<std::pair<double, int>>> stages;  // seconds, rank
    std::map<int, std::string> hosts;
    for (const RankAccount& rank : run_.ranks) {
      if (rank.server) continue;
      stages[rank.pipeline].emplace_back(compute_seconds(run_, rank), rank.rank);
      if (!rank.host.empty()) hosts[rank.rank] = " on " + rank.host;
    }
    std::vector<std::pair<double, int>> medians;
    for (auto& [stage, ranks] : stages) {
      std::sort(ranks.begin(), ranks.end());
      const double median = ranks[(ranks.size() - 1) / 2].first;
      medians.emplace_back(median, stage);
      const double excess = median > 0 ? ranks.back().first / median - 1 : 0;
      if (ranks.size() < 2 || excess < 0.10) continue;
      add("slow-rank", excess,
          fmt::format(
              "rank {}{} computes {:.0f} % longer than the median of its stage's {} ranks "
              "({:.2f} s and {:.2f} s): look at its host, its cores and what else runs there",
              ranks.back().second, hosts[ranks.back().second], percent(excess), ranks.size(),
              ranks.back().first, median));
    }
    double mean = 0;
    for (const auto& [seconds, stage] : medians)
      mean += seconds / static_cast<double>(medians.size());
    const auto slowest = std::max_element(medians.begin(), medians.end());
    const double excess = mean > 0 ? slowest->first / mean - 1 : 0;
    if (medians.size() < 2 || excess < 0.10) return;
    add("uneven-stages", excess,
        fmt::format(
            "stage {} computes {:.0f} % longer than the mean stage ({:.2f} s and {:.2f} s): "
            "fewer stages, or virtual stages, cut the layers more evenly",
            slowest->second, percent(excess), slowest->first, mean));
  }

  void volumes() {
    for (const auto& [name, volume] : mean_volumes(run_)) {
      const double times = volume.least > 0 ? volume.bytes / volume.least : 0;
      const double taken =
          volume.seconds * static_cast<double>(run_.attempt().steps.size()) / total_;
      if (times < 1.2 || taken < 0.02) continue;
      add("more-than-least", taken,
          fmt::format(
              "the {} axis sends {:.2f} times the least that this layout needs, in {:.0f} % "
              "of the step{}",
              name, times, percent(taken),
              name == "tensor" ? ": recomputation repeats sums; parallel.recompute = selective "
                                 "repeats fewer"
                               : ""));
    }
  }

  void impossible_mfu() {
    const double mfu = figures_of(run_, options_).impossible_mfu;
    if (mfu == 0) return;
    add("impossible-mfu", mfu,
        fmt::format(
            "MFU of {:.0f} % is impossible, so none is given: the {} peak of {:.1f} GFLOP/s "
            "is too low ({})",
            percent(mfu), facts_.peak_kind, facts_.peak / 1e9,
            facts_.peak_kind == "measured" ? "it was measured while something else used the machine"
                                           : "train.peak"));
  }

  void loader() {
    if (run_.ranks.empty() || total_ <= 0) return;
    const double waits = share("load data");
    if (waits < 0.03) return;
    add("loader", waits,
        fmt::format(
            "{:.0f} % of the step waits for data: raise data.prefetch, or put the dataset on "
            "a faster file system",
            percent(waits)));
  }

  void checkpoints() {
    const nlohmann::json& summary = run_.attempt().summary;
    if (!summary.is_object() || run_.ranks.empty() || total_ <= 0) return;
    const double saves =
        mean_over_ranks(run_, [](const RankAccount& rank) { return section(rank, "checkpoint"); });
    const double part = saves / (saves + total_);
    if (part < 0.10 || run_.attempt().steps.size() < 20) return;
    add("checkpoints", part,
        fmt::format(
            "checkpoints take {:.1f} s beside {:.1f} s of steps: set checkpoint.async = true, or "
            "save less often",
            saves, total_));
  }

  void steadiness() {
    std::vector<double> seconds;
    for (const RecordedStep* step : counted_steps(run_, options_)) seconds.push_back(step->seconds);
    if (static_cast<std::int64_t>(seconds.size()) < least_for_interval) return;
    const double low = quantile(seconds, 0.1), high = quantile(seconds, 0.9);
    const double spread = (high - low) / quantile(seconds, 0.5);
    if (spread < 0.25) return;
    add("unsteady", spread,
        fmt::format(
            "steps take from {:.4g} to {:.4g} s (tenth and ninetieth percentile, {:.0f} % of "
            "the median apart): something else uses the machine, or it changes its clock",
            low, high, percent(spread)));
  }

  /// A step that takes much longer or less than its prediction, and the part that differs most.
  void prediction() {
    const json& summary = run_.attempt().summary;
    if (!summary.is_object() || !summary.contains("step_time")) return;
    const std::string where = (run_.attempt().folder / "summary.json").string();
    const json& times = object_at(summary, "step_time", where);
    const json& predicted = object_at(times, "predicted", where);
    const json& measured = object_at(times, "measured", where);
    const double expected = number_at(predicted, "seconds", where);
    const double found = number_at(measured, "seconds", where);
    if (expected <= 0 || std::abs(found / expected - 1) <= 0.15) return;
    std::string text =
        fmt::format("a step takes {:.4g} s, {:.2g} times the {:.4g} s that {} predicts", found,
                    found / expected, expected, text_at(times, "machine", where));
    if (measured.contains("parts")) text += differing_part(predicted, measured, where);
    add("prediction", std::abs(found - expected) / std::max(found, expected), text);
  }
  static std::string differing_part(const json& predicted, const json& measured,
                                    const std::string& where) {
    const json& expected = object_at(predicted, "parts", where);
    const bool longer =
        number_at(measured, "seconds", where) > number_at(predicted, "seconds", where);
    std::string name;
    double most = 0;
    const json& found = object_at(measured, "parts", where);
    json names = expected;
    names.update(found);
    for (const auto& [part, unused] : names.items()) {
      const double more = optional_number_at(found, part.c_str(), where) -
                          optional_number_at(expected, part.c_str(), where);
      if ((longer ? more : -more) > most) name = part, most = longer ? more : -more;
    }
    if (name.empty()) return "";
    const bool computes = name == "compute";
    const std::string what = computes              ? "computation"
                             : name == "all ranks" ? "waiting for all ranks"
                                                   : "waiting for ranks of the axis " + name;
    return fmt::format("; most of the difference is {} ({:.4g} s, predicted {:.4g} s): {}", what,
                       optional_number_at(found, name.c_str(), where),
                       optional_number_at(expected, name.c_str(), where),
                       longer && computes
                           ? "the file describes a faster machine, or others use these cores"
                       : longer   ? "slower links, others that use them, or ranks that come late"
                       : computes ? "the file describes a slower machine"
                                  : "the file describes slower links");
  }

  const Run& run_;
  const ReadOptions& options_;
  const RunFacts& facts_;
  double total_;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> diagnose(const Run& run, const ReadOptions& options) {
  return Diagnosis(run, options).findings();
}

}  // namespace trireme::report
