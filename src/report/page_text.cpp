#include <cmath>
#include <map>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

std::string invalid_text(const Report& report) {
  std::string text;
  for (const Run& run : report.runs) {
    if (!run.valid() || run.incomplete.empty()) continue;
    text += fmt::format("INCOMPLETE {}\n        {}\n", run.name, run.incomplete);
  }
  for (const Run& run : report.runs) {
    if (run.valid()) continue;
    text += fmt::format("INVALID {}\n", run.name);
    for (const std::string& fault : run.faults) text += "        " + fault + "\n";
  }
  return text.empty() ? text : "\n" + text;
}

/// "61.2 m": of the measured peak, or n, of a nominal one.
std::string mfu_text(const Run& run, const Figures& figures) {
  if (figures.mfu.n == 0) return "-";
  return fmt::format("{:.1f} {}", 100 * figures.mfu.median,
                     run.facts.peak_kind == "measured" ? 'm' : 'n');
}

/// "2.3456 v": the last validation's, or t, the last step's.
std::string loss_text(const Figures& figures) {
  if (std::isfinite(figures.validation_loss))
    return fmt::format("{:.4f} v", figures.validation_loss);
  return fmt::format("{:.4f} t", figures.loss);
}

std::string runs_text(const Report& report) {
  if (report.measured.empty()) return "";
  std::size_t width = 3;
  for (const Measured& each : report.measured) width = std::max(width, each.run->name.size());
  std::string text = fmt::format(
      "{:<{}} | group    | ranks |  t   c   p   d | batch | step, ms {:>21}| "
      "tokens/s {:>21}|  MFU % | loss\n",
      "run", width, "", "");
  text += std::string(width + 1, '-') + "+----------+-------+-----------------+-------+" +
          std::string(31, '-') + "+" + std::string(31, '-') + "+--------+-------\n";
  for (const Measured& each : report.measured) {
    const RunFacts& facts = each.run->facts;
    const Figures& figures = each.figures;
    text += fmt::format(
        "{:<{}} | {} | {:>5} | {:>3} {:>3} {:>3} {:>3} | {:>5} | {:<30}| {:<30}| {:>6} | {}{}\n",
        each.run->name, width, fingerprint(*each.run), facts.ranks, facts.tensor, facts.context,
        facts.pipeline, facts.data, facts.batch, estimate_text(figures.seconds, 1e3),
        estimate_text(figures.tokens_per_second), mfu_text(*each.run, figures), loss_text(figures),
        each.run->incomplete.empty() ? "" : " (incomplete)");
  }
  return text;
}

/// Shares of groups, a row per run; of a single run the whole table.
std::string time_text(const Report& report) {
  std::vector<const Run*> runs;
  std::size_t width = 18;
  for (const Measured& each : report.measured) {
    if (each.run->time.rows.empty()) continue;
    runs.push_back(each.run);
    width = std::max(width, each.run->name.size());
  }
  if (runs.empty()) return "";
  if (runs.size() == 1) return fmt::format("\n{}", timing_table(runs.front()->time));
  std::string text = fmt::format("\n{:<{}}", "where time went, %", width);
  for (const char* group : time_groups) text += fmt::format(" | {}", group);
  text += "\n";
  for (const Run* run : runs) {
    text += fmt::format("{:<{}}", run->name, width);
    for (const std::string_view group : time_groups) {
      text += fmt::format(" | {:>{}.1f}", 100 * share_of(run->time, group), group.size());
    }
    text += "\n";
  }
  return text;
}

/// "efficiency, % of data on 1 rank".
std::string efficiency_head(const ScalingLine& line) {
  for (const ScalingPoint& point : line.points) {
    if (!point.reference.empty()) return "efficiency, % of " + point.reference;
  }
  return "efficiency, %";
}

/// A line for each number of ranks; "" without predictions.
std::string predictions_text(const ScalingLine& line) {
  if (line.predicted.points.empty()) return "";
  std::string text = fmt::format("predicted by {}\nranks | tokens/s   | measured | band\n",
                                 line.predicted.machine);
  for (const Prediction& each : line.predicted.points) {
    const std::vector<std::string> cells = prediction_cells(line, each.ranks);
    text += fmt::format("{:>5} | {:<10} | {:<8} | {}\n", each.ranks, cells[0], cells[1], cells[2]);
  }
  return text;
}

std::string scaling_text(const Report& report) {
  std::string text;
  for (const ScalingLine& line : report.lines) {
    text +=
        fmt::format("\n{} scaling, {} [{}]\n", line.kind == ScalingKind::strong ? "strong" : "weak",
                    line.label, line.fingerprint);
    text += "ranks | layout                            | runs | tokens/s                       | " +
            efficiency_head(line) + "\n";
    for (const ScalingPoint& point : line.points) {
      text += fmt::format("{:>5} | {:<33} | {:>4} | {:<30} | {}\n", point.ranks, point.name(),
                          point.runs.size(), estimate_text(point.tokens_per_second),
                          point.reference.empty() ? std::string("100 (the reference)")
                                                  : estimate_text(point.efficiency, 100));
    }
    text += predictions_text(line);
    for (const std::string& note : line.notes) text += "note: " + note + "\n";
  }
  return text;
}

std::string findings_text(const Report& report) {
  std::string text;
  for (const Measured& each : report.measured) {
    const Run& run = *each.run;
    if (each.findings.empty() && run.notes.empty()) continue;
    text += "\n" + run.name + "\n";
    for (const Finding& finding : each.findings) text += "  - " + finding.text + "\n";
    for (const std::string& note : run.notes) {
      if (!note.starts_with(shared_cores_text)) text += "  note: " + note + "\n";
    }
  }
  return text.empty() ? text : "\nfindings" + text;
}

}  // namespace

Report make_report(const std::vector<std::string>& paths, const ReadOptions& options) {
  Report report{.options = options};
  for (const auto& folder : find_runs(paths)) report.runs.push_back(read_run(folder, options));
  set_labels(report.runs);
  for (Run& run : report.runs) {
    if (!run.valid()) continue;
    try {
      std::vector<Finding> findings = diagnose(run, options);
      for (Finding& finding : findings) finding.text = plain_text(finding.text);
      report.measured.push_back({&run, figures_of(run, options), std::move(findings)});
    } catch (const std::exception& error) {  // a value of another kind than ours
      run.faults.push_back(plain_text(fmt::format("{}: its record is damaged: {}",
                                                  run.attempt().folder.string(), error.what())));
    }
  }
  report.lines = scaling_lines(report.measured);
  set_predictions(report.lines);
  return report;
}

std::vector<std::string> prediction_cells(const ScalingLine& line, int ranks) {
  const Prediction* predicted = line.predicted.on(ranks);
  if (predicted == nullptr) return {"-", "-", "-"};
  std::string differs = "-";
  for (const ScalingPoint& point : line.points) {
    if (point.ranks != ranks) continue;
    differs = fmt::format(
        "{:+.1f} %", 100 * (point.tokens_per_second.median / predicted->tokens_per_second - 1));
  }
  return {
      fmt::format("{:.6g}", predicted->tokens_per_second), differs,
      predicted->high > 0 ? fmt::format("{:.6g} to {:.6g}", predicted->low, predicted->high) : "-"};
}

std::string estimate_text(const Estimate& estimate, double scale) {
  if (estimate.n == 0) return "-";
  const auto number = [scale](double value) {
    const double scaled = scale * value;
    return scaled >= 9999.5 ? fmt::format("{:.0f}", scaled) : fmt::format("{:.4g}", scaled);
  };
  if (estimate.n == 1) return number(estimate.median) + " n 1";
  const bool interval = estimate.is_interval();
  return fmt::format("{} {}{}{}{}{} n {}", number(estimate.median), interval ? "[" : "(",
                     number(estimate.low), interval ? ", " : " to ", number(estimate.high),
                     interval ? "]" : ")", estimate.n);
}

std::vector<std::string> comparison_notes(const Report& report) {
  std::map<std::string, const Run*> groups;
  for (const Measured& each : report.measured) groups.emplace(fingerprint(*each.run), each.run);
  std::vector<std::string> notes;
  if (groups.size() < 2) return notes;
  const auto& [first, reference] = *groups.begin();
  for (const auto& [key, run] : groups) {
    if (run == reference) continue;
    std::string keys;
    std::size_t shown = 0;
    const auto all = differences(*reference, *run);
    for (const std::string& name : all) {
      if (shown++ < 8) keys += (keys.empty() ? "" : ", ") + plain_text(name);
    }
    if (all.size() > 8) keys += fmt::format(" and {} more", all.size() - 8);
    notes.push_back(
        fmt::format("groups {} and {} are unlike and share no line: {}", first, key, keys));
  }
  return notes;
}

std::string method_text(const Report& report) {
  const std::string warm_up =
      report.options.warm_up >= 0
          ? fmt::format("the first {} steps of every attempt are left out", report.options.warm_up)
          : "the first 5 steps of every attempt are left out, or a quarter of it where it has "
            "fewer "
            "than 20";
  return fmt::format(
      "Medians over steps of n counted steps (or, on lines, over the medians of n runs); {}. "
      "[low, high]: nonparametric 95 % interval of the median, from 6 values on; (least to "
      "greatest) "
      "of fewer, which is no interval. MFU is of the peak in the record: m measured, n nominal. "
      "Loss: v of the last validation, t of the last step.",
      warm_up);
}

std::string report_text(const Report& report) {
  std::string text = runs_text(report);
  for (const std::string& note : comparison_notes(report)) text += "note: " + note + "\n";
  text += time_text(report) + scaling_text(report) + findings_text(report) + invalid_text(report);
  return text + "\n" + method_text(report) + "\n";
}

}  // namespace trireme::report
