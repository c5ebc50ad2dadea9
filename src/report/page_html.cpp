// The report as one page.
#include <cmath>
#include <map>

#include "trireme/core/json.hpp"

#include "html_page.hpp"

namespace trireme::report {
namespace {

constexpr std::size_t most_drawn = 6;      // runs with pictures of their own: pages stay small
constexpr std::size_t most_detailed = 64;  // runs with tables of their own

void add_invalid(const Report& report, HtmlPage& page) {
  std::string html;
  for (const Run& run : report.runs) {
    if (run.valid()) continue;
    html += "<tr><td class=\"invalid\">INVALID</td><td>" + html_text(run.name) + "</td><td>";
    for (const std::string& fault : run.faults) html += html_text(fault) + "<br/>";
    html += "</td></tr>\n";
  }
  if (html.empty()) return;
  page.heading(2, "Runs that give no figure");
  page.add("<table>\n" + html_row("th", {"", "run", "why"}) + html + "</table>\n");
}

/// The study's name of its layout, else its group.
std::string group_of(const Run& run) { return run.label.empty() ? fingerprint(run) : run.label; }

void add_runs(const Report& report, HtmlPage& page) {
  page.heading(2, "Runs");
  std::string html = html_row("th", {"run", "group", "ranks", "layout", "batch", "micro-batch",
                                     "step, ms", "tokens/s", "MFU, %", "loss", "validation"});
  const auto loss = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.4f}", value) : std::string("-");
  };
  bool study = true;
  for (const Measured& each : report.measured) {
    const RunFacts& facts = each.run->facts;
    const Figures& figures = each.figures;
    study = study && !each.run->label.empty();
    html += html_row(
        "td", {each.run->name + (each.run->incomplete.empty() ? "" : " (incomplete)"),
               group_of(*each.run), std::to_string(facts.ranks), facts.layout(),
               std::to_string(facts.batch), std::to_string(facts.micro_batch),
               estimate_text(figures.seconds, 1e3), estimate_text(figures.tokens_per_second),
               figures.mfu.n == 0
                   ? "-"
                   : estimate_text(figures.mfu, 100) + " of the " + facts.peak_kind + " peak",
               loss(figures.loss), loss(figures.validation_loss)});
  }
  page.add("<table>\n" + html + "</table>\n");
  if (!study) page.list(comparison_notes(report));
}

void add_scaling(const Report& report, ScalingKind kind, HtmlPage& page) {
  const bool predicted = std::ranges::any_of(report.lines, [&](const ScalingLine& line) {
    return line.kind == kind && !line.predicted.points.empty();
  });
  // `cells`, and with predictions three more.
  const auto row = [&](const char* cell, std::vector<std::string> cells,
                       const std::vector<std::string>& of_prediction) {
    if (predicted) cells.insert(cells.end(), of_prediction.begin(), of_prediction.end());
    return html_row(cell, cells);
  };
  std::string html = row(
      "th", {"line", "ranks", "layout", "runs", "tokens/s", "efficiency, %", "efficiency is of"},
      {"predicted, tokens/s", "measured differs", "band"});
  std::vector<std::string> notes;
  bool any = false;
  for (const ScalingLine& line : report.lines) {
    if (line.kind != kind) continue;
    any = true;
    for (const ScalingPoint& point : line.points) {
      const bool first = &point == &line.points.front();
      html += row("td",
                  {first ? line.label : "", std::to_string(point.ranks), point.name(),
                   std::to_string(point.runs.size()), estimate_text(point.tokens_per_second),
                   point.reference.empty() ? "100" : estimate_text(point.efficiency, 100),
                   point.reference.empty() ? "itself" : point.reference},
                  prediction_cells(line, point.ranks));
    }
    for (const Prediction& each : line.predicted.points) {
      if (!each.extrapolated) continue;
      html += row("td",
                  {"", std::to_string(each.ranks), line.points.front().name(), "0", "-", "-", "-"},
                  prediction_cells(line, each.ranks));
    }
    if (!line.predicted.points.empty()) {
      notes.push_back(
          fmt::format("{}: predicted by {}; band: predicted, times the least and the greatest of "
                      "measured / predicted of this line",
                      line.label, line.predicted.machine));
    }
    for (const std::string& note : line.notes) notes.push_back(line.label + ": " + note);
  }
  if (!any) return;
  page.heading(2, kind == ScalingKind::strong ? "Strong scaling: the same global batch"
                                              : "Weak scaling: the same batch per rank");
  page.add("<table>\n" + html + "</table>\n");
  page.list(notes);
}

/// One run of each configuration of the works that are compared; without any, all runs.
std::vector<NamedRun> shown_runs(const Report& report) {
  constexpr std::size_t most = 24;
  std::vector<NamedRun> shown;
  for (const WorkGroup& group : work_groups(report.measured)) {
    if (!group.scales()) continue;
    for (const ScalingPoint& point : group.points) {
      const bool known = std::any_of(shown.begin(), shown.end(), [&](const NamedRun& each) {
        return each.second == point.runs.front();
      });
      if (known || shown.size() == most) continue;
      shown.emplace_back(
          fmt::format("{}, {} rank{}", point.name(), point.ranks, point.ranks == 1 ? "" : "s"),
          point.runs.front());
    }
  }
  if (!shown.empty()) return shown;
  for (const Measured& each : report.measured) {
    if (shown.size() < most) shown.emplace_back(each.run->name, each.run);
  }
  return shown;
}

/// A picture for each question; no more than eight.
void add_charts(const Report& report, HtmlPage& page) {
  page.add("<div class=\"charts\">\n");
  for (const ScalingKind kind : {ScalingKind::strong, ScalingKind::weak}) {
    const bool any = std::any_of(report.lines.begin(), report.lines.end(),
                                 [&](const ScalingLine& line) { return line.kind == kind; });
    for (const bool efficiency : {false, true}) {
      if (any) page.figure(plot_scaling(report.lines, kind, efficiency));
    }
  }
  const std::vector<NamedRun> shown = shown_runs(report);
  page.figure(plot_memory_totals(shown));
  page.figure(plot_time_shares(shown));
  page.figure(plot_losses(shown));
  page.add("</div>\n");
}

std::string memory_rows(const Run& run) {
  const nlohmann::json& summary = run.attempt().summary;
  if (!summary.is_object() || !summary.contains("memory")) return "";
  const std::string file = (run.attempt().folder / "summary.json").string();
  std::string html;
  for (const auto& [use, bytes] : object_at(summary, "memory", file).items()) {
    const auto mebibytes = [&, &bytes = bytes](const char* key) {
      return fmt::format("{:.3f}", number_at(bytes, key, file) / (1 << 20));
    };
    html += html_row("td", {use, mebibytes("predicted"), mebibytes("measured")});
  }
  return html.empty() ? "" : html_row("th", {"memory, MiB", "predicted", "measured"}) + html;
}

std::string communication_rows(const Run& run) {
  std::string html;
  for (const auto& [axis, volume] : mean_volumes(run)) {
    html += html_row("td", {axis, fmt::format("{:.3f}", volume.bytes / 1e6),
                            fmt::format("{:.3f}", volume.least / 1e6),
                            fmt::format("{:.3f}", volume.seconds * 1e3)});
  }
  if (html.empty()) return "";
  return html_row("th", {"axis, of a step and rank", "MB sent", "least MB", "ms"}) + html;
}

void add_details(const Measured& measured, const Report& report, HtmlPage& page) {
  const Run& run = *measured.run;
  page.begin_fold("Run " + run.name);
  const RunFacts& facts = run.facts;
  page.paragraph(
      fmt::format("{} parameters, sequence {}, batch {} in micro-batches of {}, {}; {}; {} "
                  "threads a rank; {}; {} on {}; started {}; {}; group {}",
                  facts.parameters, facts.sequence, facts.batch, facts.micro_batch, facts.precision,
                  facts.layout(), facts.threads, facts.schedule, facts.device, facts.processor,
                  facts.start, facts.versions, fingerprint(run)),
      "note");
  std::vector<std::string> lines;
  for (const Finding& finding : measured.findings) lines.push_back(finding.text);
  if (!run.incomplete.empty()) lines.push_back("incomplete: " + run.incomplete);
  for (const std::string& note : run.notes) {
    if (!note.starts_with(shared_cores_text)) lines.push_back("note: " + note);
  }
  page.list(lines);
  if (!run.time.rows.empty()) page.add("<pre>" + html_text(timing_table(run.time)) + "</pre>\n");
  for (const std::string& rows : {memory_rows(run), communication_rows(run)}) {
    if (!rows.empty()) page.add("<table>\n" + rows + "</table>\n");
  }
  if (report.measured.size() <= most_drawn) {
    page.figure(plot_sections(run));
    page.figure(plot_communication(run));
    page.figure(plot_memory(run));
    try {
      if (auto plot = plot_trace(run, report.options)) page.figure(std::move(*plot));
    } catch (const Error& error) {
      page.paragraph(fmt::format("The trace cannot be drawn: {}", error.what()), "note");
    }
  }
  page.end_fold();
}

/// "On up to 4 ranks, zero1 on 4 is the fastest: …"; one sentence.
std::string verdict(const Report& report) {
  std::string text;
  for (const WorkGroup& group : work_groups(report.measured)) {
    if (!group.scales()) continue;
    const auto fastest = std::max_element(
        group.points.begin(), group.points.end(), [](const ScalingPoint& a, const ScalingPoint& b) {
          return a.tokens_per_second.median < b.tokens_per_second.median;
        });
    text +=
        fmt::format("{}{} scaling, {}: the fastest is {} on {} rank{} with {:.0f} tokens/s, {}",
                    text.empty() ? "" : "; ", group.kind == ScalingKind::strong ? "strong" : "weak",
                    group.work, fastest->name(), fastest->ranks, fastest->ranks == 1 ? "" : "s",
                    fastest->tokens_per_second.median,
                    fastest->reference.empty()
                        ? "so more ranks do not help"
                        : fmt::format("{:.1f} % of the speed per rank of {}",
                                      100 * fastest->efficiency.median, fastest->reference));
  }
  if (!text.empty()) {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text + ".";
  }
  if (report.measured.empty()) return "No run is valid: there is no figure.";
  const auto fastest = std::max_element(
      report.measured.begin(), report.measured.end(), [](const Measured& a, const Measured& b) {
        return a.figures.tokens_per_second.median < b.figures.tokens_per_second.median;
      });
  return fmt::format("{}{} trains {} tokens/s.",
                     report.measured.size() > 1 ? "The fastest run, " : "Run ", fastest->run->name,
                     estimate_text(fastest->figures.tokens_per_second));
}

/// `html` without the folder that all runs are in, where it is named from the root.
std::string without_folder(std::string html, const Report& report) {
  namespace fs = std::filesystem;
  fs::path common = report.runs.front().folder.lexically_normal().parent_path();
  for (const Run& run : report.runs) {
    const fs::path folder = run.folder.lexically_normal();
    while (std::mismatch(common.begin(), common.end(), folder.begin(), folder.end()).first !=
           common.end()) {
      common = common.parent_path();
    }
  }
  const std::string folder = html_text(plain_text(common.string())) + "/";
  if (!common.is_absolute() || common == common.root_path()) return html;
  for (std::size_t at = html.find(folder); at != html.npos; at = html.find(folder, at)) {
    html.erase(at, folder.size());
  }
  return html;
}

}  // namespace

std::string report_html(const Report& report) {
  HtmlPage page;
  page.heading(1, "Trireme: report");
  page.paragraph(verdict(report), "verdict");
  page.paragraph(fmt::format("{} of {} runs valid.", report.measured.size(), report.runs.size()));
  if (!report.measured.empty()) add_charts(report, page);
  add_invalid(report, page);
  if (!report.measured.empty()) {
    add_runs(report, page);
    add_scaling(report, ScalingKind::strong, page);
    add_scaling(report, ScalingKind::weak, page);
    page.heading(2, "Each run");
    for (std::size_t i = 0; i < std::min(most_detailed, report.measured.size()); ++i) {
      add_details(report.measured[i], report, page);
    }
    if (report.measured.size() > most_drawn) {
      page.paragraph(
          fmt::format("Name at most {} runs to see pictures of each, and {} to see "
                      "tables of each.",
                      most_drawn, most_detailed));
    }
  }
  page.heading(2, "How figures are made");
  page.paragraph(method_text(report), "note");
  return without_folder(page.text("Trireme: report"), report);
}

}  // namespace trireme::report
