// Figures of a run over its counted steps.
#include <limits>

#include "trireme/report/runs.hpp"

namespace trireme::report {

std::vector<const RecordedStep*> counted_steps(const Run& run, const ReadOptions& options) {
  std::map<int, std::int64_t> warm_up;  // of the attempts that count, by number
  for (const Attempt& attempt : run.attempts) {
    const bool chosen = &attempt == &run.attempt();
    if (!chosen && (attempt.step_class.empty() || attempt.step_class != run.attempt().step_class)) {
      continue;
    }
    warm_up[attempt.number] = options.warm_up_of(static_cast<std::int64_t>(attempt.steps.size()));
  }
  std::vector<const RecordedStep*> counted;
  for (const RecordedStep& step : run.steps) {
    const auto found = warm_up.find(step.attempt);
    if (found == warm_up.end() || step.place <= found->second || !step.skipped.empty()) continue;
    counted.push_back(&step);
  }
  return counted;
}

std::map<std::string, Volume> mean_volumes(const Run& run) {
  std::map<std::string, Volume> means;
  const auto ranks = static_cast<double>(run.ranks.size());
  for (const RankAccount& rank : run.ranks) {
    for (const auto& [name, volume] : rank.communication) {
      means[name].bytes += volume.bytes / ranks;
      means[name].least += volume.least / ranks;
      means[name].seconds += volume.seconds / ranks;
    }
  }
  return means;
}

Figures figures_of(const Run& run, const ReadOptions& options) {
  Figures figures;
  const auto tokens = static_cast<double>(run.facts.batch * run.facts.sequence);
  std::vector<double> seconds, speeds, shares;
  for (const RecordedStep* step : counted_steps(run, options)) {
    seconds.push_back(step->seconds);
    speeds.push_back(tokens / step->seconds);
    if (run.facts.peak > 0) {
      shares.push_back(speeds.back() * run.facts.flops_per_token / run.facts.peak);
    }
  }
  figures.left_out = static_cast<std::int64_t>(run.steps.size() - seconds.size());
  figures.seconds = estimate(std::move(seconds));
  figures.tokens_per_second = estimate(std::move(speeds));
  figures.mfu = estimate(std::move(shares));
  if (figures.mfu.high > 1) {
    figures.impossible_mfu = figures.mfu.high;
    figures.mfu = {};
  }
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  figures.loss = run.steps.empty() ? none : run.steps.back().loss;
  figures.validation_loss = run.evaluations.empty() ? none : run.evaluations.back().loss;
  return figures;
}

}  // namespace trireme::report
