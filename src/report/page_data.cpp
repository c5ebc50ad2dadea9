// The report for other programs: CSV, JSON, Google Benchmark's JSON.
#include <cmath>

#include "trireme/core/error.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

json facts_json(const Run& run) {
  const RunFacts& facts = run.facts;
  return {{"ranks", facts.ranks},
          {"tensor", facts.tensor},
          {"context", facts.context},
          {"pipeline", facts.pipeline},
          {"data", facts.data},
          {"servers", facts.servers},
          {"method", facts.method},
          {"nodes", facts.nodes},
          {"threads_per_rank", facts.threads},
          {"batch", facts.batch},
          {"micro_batch", facts.micro_batch},
          {"sequence", facts.sequence},
          {"parameters", facts.parameters},
          {"zero", facts.zero},
          {"schedule", facts.schedule},
          {"virtual_stages", facts.virtual_stages},
          {"precision", facts.precision},
          {"peak_kind", facts.peak_kind},
          {"peak_at_start", facts.peak_at_start},
          {"peak_at_end", facts.peak_at_end},
          {"device", facts.device},
          {"processor", facts.processor},
          {"versions", facts.versions},
          {"start", facts.start},
          {"fingerprint", fingerprint(run)}};
}

json communication_json(const Run& run) {
  json all = json::object();
  for (const auto& [name, volume] : mean_volumes(run)) {
    all[name] = {{"mean_bytes_per_step", volume.bytes},
                 {"mean_least_bytes_per_step", volume.least},
                 {"mean_seconds_per_step", volume.seconds}};
  }
  return all;
}

json figures_json(const Figures& figures) {
  return {{"seconds_per_step", estimate_json(figures.seconds)},
          {"tokens_per_second", estimate_json(figures.tokens_per_second)},
          {"mfu", estimate_json(figures.mfu)},
          {"steps_left_out", figures.left_out},
          {"loss", std::isnan(figures.loss) ? json() : json(figures.loss)},
          {"validation_loss",
           std::isnan(figures.validation_loss) ? json() : json(figures.validation_loss)}};
}

json points_json(const std::vector<ScalingPoint>& all) {
  json points = json::array();
  for (const ScalingPoint& point : all) {
    json runs = json::array();
    for (const Run* run : point.runs) runs.push_back(run->name);
    points.push_back({{"ranks", point.ranks},
                      {"name", point.name()},
                      {"layout", point.layout},
                      {"micro_batch", point.micro_batch},
                      {"nodes", point.nodes},
                      {"runs", runs},
                      {"tokens_per_second", estimate_json(point.tokens_per_second)},
                      {"efficiency", estimate_json(point.efficiency)},
                      {"reference", point.reference}});
  }
  return points;
}

const char* name_of(ScalingKind kind) { return kind == ScalingKind::strong ? "strong" : "weak"; }

json predictions_json(const Predictions& predicted) {
  json points = json::array();
  for (const Prediction& each : predicted.points) {
    json entry{{"ranks", each.ranks},
               {"tokens_per_second", each.tokens_per_second},
               {"extrapolated", each.extrapolated}};
    if (each.high > 0) entry.update({{"low", each.low}, {"high", each.high}});
    points.push_back(std::move(entry));
  }
  return {{"machine", predicted.machine}, {"points", std::move(points)}};
}

json line_json(const ScalingLine& line) {
  json result{{"kind", name_of(line.kind)},
              {"fingerprint", line.fingerprint},
              {"label", line.label},
              {"points", points_json(line.points)},
              {"notes", line.notes}};
  if (!line.predicted.points.empty()) result["predicted"] = predictions_json(line.predicted);
  return result;
}

json works_json(const Report& report) {
  json works = json::array();
  for (const WorkGroup& group : work_groups(report.measured)) {
    works.push_back({{"kind", name_of(group.kind)},
                     {"work", group.work},
                     {"points", points_json(group.points)}});
  }
  return works;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

/// Empty cells where there is no figure; bounds of an interval only where it is one.
std::string cells(const Estimate& estimate) {
  if (estimate.n == 0) return ",,,";
  if (!estimate.is_interval()) {
    return fmt::format("{},{:.9g},,", estimate.n, estimate.median);
  }
  return fmt::format("{},{:.9g},{:.9g},{:.9g}", estimate.n, estimate.median, estimate.low,
                     estimate.high);
}

}  // namespace

json estimate_json(const Estimate& estimate) {
  if (estimate.n == 0) return nullptr;
  json result{{"n", estimate.n}, {"median", estimate.median}};
  const bool interval = estimate.is_interval();
  result[interval ? "interval_low" : "least"] = estimate.low;
  result[interval ? "interval_high" : "greatest"] = estimate.high;
  return result;
}

std::string report_csv(const Report& report) {
  std::string text =
      "run,valid,reason,fingerprint,ranks,tensor,pipeline,data,nodes,threads_per_rank,batch,"
      "micro_batch,sequence,precision,n,seconds_per_step,seconds_low,seconds_high,n_speed,"
      "tokens_per_second,tokens_per_second_low,tokens_per_second_high,n_mfu,mfu,mfu_low,mfu_high,"
      "loss,validation_loss\n";
  std::size_t next = 0;
  for (const Run& run : report.runs) {
    text += fmt::format("{},{},{},", csv_text(run.name),
                        !run.valid()             ? "no"
                        : run.incomplete.empty() ? "yes"
                                                 : "incomplete",
                        csv_text(run.valid() ? run.incomplete : joined(run.faults)));
    if (!run.valid()) {
      text += std::string(24, ',') + "\n";
      continue;
    }
    const RunFacts& facts = run.facts;
    const Figures& figures = report.measured[next++].figures;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},", fingerprint(run), facts.ranks,
                        facts.tensor, facts.pipeline, facts.data, facts.nodes, facts.threads,
                        facts.batch, facts.micro_batch, facts.sequence, csv_text(facts.precision));
    text += cells(figures.seconds) + "," + cells(figures.tokens_per_second) + "," +
            cells(figures.mfu) + ",";
    const auto loss = [](double value) {
      return std::isnan(value) ? std::string() : fmt::format("{:.9g}", value);
    };
    text += loss(figures.loss) + "," + loss(figures.validation_loss) + "\n";
  }
  return text;
}

json report_json(const Report& report) {
  json runs = json::array();
  std::size_t next = 0;
  for (const Run& run : report.runs) {
    json entry{
        {"run", run.name}, {"valid", run.valid() && run.incomplete.empty()}, {"notes", run.notes}};
    if (!run.incomplete.empty()) entry["incomplete"] = run.incomplete;
    if (!run.valid()) {
      entry["faults"] = run.faults;
      runs.push_back(std::move(entry));
      continue;
    }
    entry.update(facts_json(run));
    const Measured& measured = report.measured[next++];
    entry["figures"] = figures_json(measured.figures);
    entry["communication"] = communication_json(run);
    if (!run.time.rows.empty()) entry["time"] = time_json(run.time);
    const json& summary = run.attempt().summary;
    for (const char* key : {"sections", "memory"}) {
      if (summary.is_object() && summary.contains(key)) entry[key] = summary.at(key);
    }
    json findings = json::array();
    for (const Finding& finding : measured.findings) {
      findings.push_back(
          {{"rule", finding.rule}, {"share", finding.share}, {"text", finding.text}});
    }
    entry["findings"] = std::move(findings);
    runs.push_back(std::move(entry));
  }
  json lines = json::array();
  for (const ScalingLine& line : report.lines) lines.push_back(line_json(line));
  return {{"format", 1},
          {"method", method_text(report)},
          {"runs", std::move(runs)},
          {"comparison", comparison_notes(report)},
          {"scaling", std::move(lines)},
          {"works", works_json(report)}};
}

json google_benchmark_json(const Report& report) {
  json benchmarks = json::array();
  json context = json::object();
  std::size_t next = 0;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const Run& run = report.runs[i];
    json entry{{"name", run.name},        {"run_name", run.name},
               {"family_index", i},       {"per_family_instance_index", 0},
               {"run_type", "iteration"}, {"repetitions", 1},
               {"repetition_index", 0},   {"threads", run.valid() ? run.facts.threads : 1}};
    if (!run.valid()) {
      entry["error_occurred"] = true;
      entry["error_message"] = "INVALID: " + joined(run.faults);
      benchmarks.push_back(std::move(entry));
      continue;
    }
    const Figures& figures = report.measured[next++].figures;
    if (!run.incomplete.empty()) entry["label"] = "incomplete: " + run.incomplete;
    entry["iterations"] = figures.seconds.n;
    entry["real_time"] = 1e3 * figures.seconds.median;
    entry["cpu_time"] = 1e3 * figures.seconds.median;  // the record has no processor time
    entry["time_unit"] = "ms";
    entry["items_per_second"] = figures.tokens_per_second.median;  // tokens
    entry["ranks"] = run.facts.ranks;
    entry["batch"] = run.facts.batch;
    if (figures.mfu.n > 0) entry["mfu"] = figures.mfu.median;
    if (context.empty()) {
      const json host = run.attempt().run.at("hosts").front();
      context = {{"date", run.facts.start},
                 {"host_name", host.at("name")},
                 {"executable", "trireme"},
                 {"num_cpus", host.contains("cores") ? host.at("cores") : json(0)},
                 {"processor", run.facts.processor},
                 {"versions", run.facts.versions}};
    }
    benchmarks.push_back(std::move(entry));
  }
  return {{"context", std::move(context)}, {"benchmarks", std::move(benchmarks)}};
}

}  // namespace trireme::report
