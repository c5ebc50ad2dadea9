#include <limits>

#include "trireme/report/runs.hpp"

namespace trireme::report {
namespace {

/// Whether two attempts' steps take equally long: the same ranks, threads, layout and batch.
bool alike(const Attempt& a, const Attempt& b) {
  if (&a == &b) return true;
  if (!a.run.is_object() || !b.run.is_object()) return false;
  for (const char* key : {"ranks", "threads_per_rank", "layout", "versions", "hosts"}) {
    if (a.run.value(key, nlohmann::json()) != b.run.value(key, nlohmann::json())) return false;
  }
  const auto section = [](const Attempt& attempt, const char* name) {
    const nlohmann::json config = attempt.run.value("config", nlohmann::json::object());
    return config.is_object() ? config.value(name, nlohmann::json()) : nlohmann::json();
  };
  const auto value = [&](const Attempt& attempt, const char* key) {
    const nlohmann::json train = section(attempt, "train");
    return train.is_object() ? train.value(key, nlohmann::json()) : nlohmann::json();
  };
  for (const char* name : {"model", "parallel", "precision", "numerics", "zero"}) {
    if (section(a, name) != section(b, name)) return false;
  }
  return value(a, "batch") == value(b, "batch") &&
         value(a, "micro_batch") == value(b, "micro_batch");
}

}  // namespace

std::int64_t warm_up_steps(std::int64_t steps_of_attempt) {
  return steps_of_attempt >= 20 ? 5 : (steps_of_attempt + 3) / 4;
}

std::vector<const RecordedStep*> counted_steps(const Run& run, const ReadOptions& options) {
  std::vector<const RecordedStep*> counted;
  for (const RecordedStep& step : run.steps) {
    for (const Attempt& attempt : run.attempts) {
      if (attempt.number != step.attempt || !alike(attempt, run.attempt())) continue;
      const auto all = static_cast<std::int64_t>(attempt.steps.size());
      const std::int64_t warm_up = options.warm_up >= 0 ? options.warm_up : warm_up_steps(all);
      if (step.place > warm_up && step.skipped.empty()) counted.push_back(&step);
    }
  }
  return counted;
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
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  figures.loss = run.steps.empty() ? none : run.steps.back().loss;
  figures.validation_loss = run.evaluations.empty() ? none : run.evaluations.back().loss;
  return figures;
}

}  // namespace trireme::report
