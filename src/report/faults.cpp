// Decides whether a run is valid.
#include <cmath>
#include <iterator>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/core/text.hpp"
#include "trireme/report/runs.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

std::string where(const Attempt& attempt) { return fmt::format("attempt {:04}", attempt.number); }

void check_memory(const Attempt& attempt, Run& run) {
  const std::string file = (attempt.folder / "summary.json").string();
  for (const auto& [use, bytes] : object_at(attempt.summary, "memory", file).items()) {
    if (!bytes.is_object()) throw Error("{}: memory is damaged; restore the file", file);
    const std::int64_t predicted = integer_at(bytes, "predicted", file);
    const std::int64_t measured = integer_at(bytes, "measured", file);
    const auto in_part = bytes.find("in_part");
    if (in_part != bytes.end() && !in_part->is_boolean()) {
      throw Error("{}: memory is damaged; restore the file", file);
    }
    if (predicted == measured || (in_part != bytes.end() && in_part->get<bool>())) continue;
    run.faults.push_back(fmt::format("{}: memory of {}: {} bytes predicted, {} measured",
                                     where(attempt), use, predicted, measured));
  }
}

void check_end(Run& run) {
  for (std::size_t i = 0; i < run.attempts.size(); ++i) {
    const Attempt& attempt = run.attempts[i];
    const bool last = i + 1 == run.attempts.size();
    std::string fault;
    std::string incomplete;
    if (!attempt.run.is_object()) {
      fault = where(attempt) + ": there is no run.json: it ended before its first step";
    } else if (!attempt.summary.is_object()) {
      incomplete = fmt::format(
          "{}: there is no summary.json: {}it was killed, by a crash, the watchdog or a scheduler",
          where(attempt), last ? "it is still running, or " : "");
    } else if (attempt.summary.contains("incomplete")) {
      incomplete = fmt::format(
          "{}: its record could not be written to the end: {}", where(attempt),
          text_at(attempt.summary, "incomplete", (attempt.folder / "summary.json").string()));
    }
    if (last && !run.steps.empty()) {
      run.incomplete = incomplete;
    } else if (!incomplete.empty()) {
      fault = incomplete;
    }
    for (const RecordedEvent& event : attempt.events) {
      if (event.event == "failed") {
        fault = fmt::format("{}: failed after step {}: {}", where(attempt), event.step, event.text);
      }
    }
    if (fault.empty()) continue;
    (last ? run.faults : run.notes).push_back(fault);
  }
  const std::int64_t last = run.steps.empty() ? 0 : run.steps.back().step;
  if (!run.steps.empty() && last < run.facts.steps) {
    run.notes.push_back(fmt::format("unfinished: step {} of {}", last, run.facts.steps));
  }
}

/// Compares the first step in metrics.jsonl with run.json, and the last one with summary.json.
void check_ends_of_metrics(const Attempt& attempt, Run& run) {
  const auto count = static_cast<std::int64_t>(attempt.steps.size());
  if (attempt.run.is_object() && attempt.run.contains("first_step") && count > 0) {
    const std::string file = (attempt.folder / "run.json").string();
    const std::int64_t before = integer_at(attempt.run, "first_step", file);
    const std::int64_t first = attempt.steps.front().step;
    if (first != before + 1) {
      run.faults.push_back(
          fmt::format("{}: metrics.jsonl begins with step {}, and the attempt with step {}",
                      where(attempt), first, before + 1));
    }
  }
  if (!attempt.summary.is_object()) return;
  if (attempt.summary.contains("incomplete")) return;
  const std::string file = (attempt.folder / "summary.json").string();
  if (attempt.summary.contains("steps_of_attempt")) {
    const std::int64_t made = integer_at(attempt.summary, "steps_of_attempt", file);
    if (made != count) {
      run.faults.push_back(fmt::format("{}: metrics.jsonl has {}, and summary.json says {}",
                                       where(attempt), counted(count, "step"), made));
      return;
    }
  }
  if (count == 0) return;
  const std::int64_t last = integer_at(attempt.summary, "steps", file);
  if (attempt.steps.back().step == last) return;
  run.faults.push_back(
      fmt::format("{}: metrics.jsonl ends with step {}, and summary.json says step {}",
                  where(attempt), attempt.steps.back().step, last));
}

void check_steps(Run& run) {
  for (std::size_t i = 1; i < run.steps.size(); ++i) {
    const std::int64_t before = run.steps[i - 1].step, step = run.steps[i].step;
    if (step != before + 1) {
      run.faults.push_back(fmt::format("steps {} to {} are missing", before + 1, step - 1));
    }
  }
  std::int64_t skipped = 0;
  for (const RecordedStep& step : run.steps) {
    skipped += static_cast<std::int64_t>(!step.skipped.empty());
    if (std::isfinite(step.loss)) continue;
    run.faults.push_back(fmt::format("the loss of step {} is not finite", step.step));
    break;
  }
  if (skipped > 0) {
    run.notes.push_back(fmt::format("{} whose update was skipped, left out of all figures",
                                    counted(skipped, "step")));
  }
  for (const RecordedEvaluation& evaluation : run.evaluations) {
    if (std::isfinite(evaluation.loss)) continue;
    run.faults.push_back(
        fmt::format("the validation loss after step {} is not finite", evaluation.step));
    break;
  }
}

/// Of an attempt whose steps give figures.
void check_cores(const Attempt& attempt, const ReadOptions& options, Run& run) {
  if (!attempt.run.contains("cores_shared")) {
    run.notes.push_back(where(attempt) +
                        ": its record does not say whether ranks shared cores (format 1)");
    return;
  }
  const std::string shared =
      text_at(attempt.run, "cores_shared", (attempt.folder / "run.json").string());
  if (shared.empty()) return;
  std::string text =
      shared.starts_with(shared_cores_text) ? shared : shared_cores_text + (": " + shared);
  if (run.attempts.size() > 1) text += fmt::format(" ({})", where(attempt));
  (options.shared_cores ? run.notes : run.faults).push_back(text);
}

void check_circumstances(Run& run, const ReadOptions& options) {
  const std::vector<const RecordedStep*> counted = counted_steps(run, options);
  std::set<int> timed{run.attempt().number}, used{run.attempt().number};
  for (const RecordedStep* step : counted) timed.insert(step->attempt);
  for (const RecordedStep& step : run.steps) used.insert(step.attempt);
  for (const Attempt& attempt : run.attempts) {
    if (!attempt.run.is_object()) continue;
    if (timed.contains(attempt.number)) check_cores(attempt, options, run);
    if (!used.contains(attempt.number)) continue;
    const std::string file = (attempt.folder / "run.json").string();
    const json& train = object_at(object_at(attempt.run, "config", file), "train", file);
    if (train.contains("inject") && train.at("inject") != "none") {
      run.faults.push_back(fmt::format("{}: faults were made on purpose: train.inject = {}",
                                       where(attempt), json_text(train.at("inject"))));
    }
  }
  if (run.steps.empty() && !run.attempts.empty()) {  // it evaluated, or saved in another layout
    run.notes.emplace_back("no steps, so no speed");
  } else if (counted.empty()) {
    run.faults.push_back(fmt::format("too short: {}, none after warm-up",
                                     trireme::counted(std::ssize(run.steps), "step")));
  }
}

}  // namespace

void find_faults(Run& run, const ReadOptions& options) {
  for (const Attempt& attempt : run.attempts) {
    if (attempt.summary.is_object()) check_memory(attempt, run);
    check_ends_of_metrics(attempt, run);
    check_totals(attempt, run);
    if (attempt.cut)
      run.notes.push_back(where(attempt) + ": the last line of metrics.jsonl is cut");
  }
  check_end(run);
  check_steps(run);
  check_circumstances(run, options);
  if (!run.faults.empty() && !run.incomplete.empty()) run.faults.push_back(run.incomplete);
}

}  // namespace trireme::report
