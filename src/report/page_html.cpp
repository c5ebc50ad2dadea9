// The report as one page.
#include <cmath>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/page.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

constexpr std::size_t most_detailed = 24;  // runs with pictures of their own

constexpr const char* style = R"(
body { font: 15px/1.45 sans-serif; color: #222; max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05em; margin-bottom: 0.3em; }
table { border-collapse: collapse; font-size: 0.88em; margin: 0.8em 0; }
th, td { border: 1px solid #ddd; padding: 0.25em 0.55em; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { background: #f3f3f3; }
.invalid { color: #a40000; font-weight: bold; }
figure { margin: 1em 0; } figcaption { font-size: 0.85em; color: #555; }
svg { max-width: 100%; height: auto; }
.note { color: #555; font-size: 0.9em; }
)";

/// A document whose pictures are drawn together at the end.
class Page {
 public:
  void add(const std::string& html) { parts_.push_back(html); }
  void heading(int level, const std::string& text) {
    add(fmt::format("<h{0}>{1}</h{0}>\n", level, html_text(text)));
  }
  void paragraph(const std::string& text, const char* kind = "") {
    add(fmt::format("<p{}>{}</p>\n", *kind == 0 ? "" : fmt::format(" class=\"{}\"", kind),
                    html_text(text)));
  }
  void list(const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    std::string html = "<ul>\n";
    for (const std::string& line : lines) html += "<li>" + html_text(line) + "</li>\n";
    add(html + "</ul>\n");
  }
  /// Nothing where the plot has no data.
  void figure(Plot plot) {
    if (plot.script.empty()) return;
    places_.push_back(parts_.size());
    parts_.push_back("<h3>" + html_text(plot.title) + "</h3>\n");
    plots_.push_back(std::move(plot));
  }
  std::string text() const {
    const std::vector<std::string> pictures = draw(plots_);
    std::vector<std::string> parts = parts_;
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      parts[places_[i]] += "<figure>\n" + pictures[i] + "\n<figcaption>" +
                           html_text(plots_[i].caption) + "</figcaption>\n</figure>\n";
    }
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  }

 private:
  std::vector<std::string> parts_;
  std::vector<std::size_t> places_;
  std::vector<Plot> plots_;
};

std::string row(const char* cell, const std::vector<std::string>& values) {
  std::string html = "<tr>";
  for (const std::string& value : values) {
    const bool number = !value.empty() && value.find_first_not_of("0123456789.-") == value.npos;
    html += fmt::format("<{0}{1}>{2}</{0}>", cell,
                        number && *cell == 't' && cell[1] == 'd' ? " class=\"n\"" : "",
                        html_text(value));
  }
  return html + "</tr>\n";
}

void add_invalid(const Report& report, Page& page) {
  std::string html;
  for (const Run& run : report.runs) {
    if (run.valid()) continue;
    html += "<tr><td class=\"invalid\">INVALID</td><td>" + html_text(run.name) + "</td><td>";
    for (const std::string& fault : run.faults) html += html_text(fault) + "<br/>";
    html += "</td></tr>\n";
  }
  if (html.empty()) return;
  page.heading(2, "Runs that give no figure");
  page.add("<table>\n" + row("th", {"", "run", "why"}) + html + "</table>\n");
}

void add_runs(const Report& report, Page& page) {
  page.heading(2, "Runs");
  std::string html = row("th", {"run", "group", "ranks", "layout", "batch", "micro-batch",
                                "step, ms", "tokens/s", "MFU, %", "loss", "validation"});
  const auto loss = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.4f}", value) : std::string("-");
  };
  for (const Measured& each : report.measured) {
    const RunFacts& facts = each.run->facts;
    const Figures& figures = each.figures;
    html +=
        row("td", {each.run->name + (each.run->incomplete.empty() ? "" : " (incomplete)"),
                   fingerprint(*each.run), std::to_string(facts.ranks), facts.layout(),
                   std::to_string(facts.batch), std::to_string(facts.micro_batch),
                   estimate_text(figures.seconds, 1e3), estimate_text(figures.tokens_per_second),
                   figures.mfu.n == 0
                       ? "-"
                       : estimate_text(figures.mfu, 100) + " of the " + facts.peak_kind + " peak",
                   loss(figures.loss), loss(figures.validation_loss)});
  }
  page.add("<table>\n" + html + "</table>\n");
  page.list(comparison_notes(report));
}

void add_scaling(const Report& report, ScalingKind kind, Page& page) {
  std::string html = row("th", {"line", "ranks", "layout", "runs", "tokens/s", "efficiency, %"});
  std::vector<std::string> notes;
  bool any = false;
  for (const ScalingLine& line : report.lines) {
    if (line.kind != kind) continue;
    any = true;
    for (const ScalingPoint& point : line.points) {
      const bool first = &point == &line.points.front();
      html += row("td", {first ? line.label + " [" + line.fingerprint + "]" : "",
                         std::to_string(point.ranks), point.layout,
                         std::to_string(point.runs.size()), estimate_text(point.tokens_per_second),
                         first ? "100 (the reference)" : estimate_text(point.efficiency, 100)});
    }
    for (const std::string& note : line.notes) notes.push_back(line.label + ": " + note);
  }
  if (!any) return;
  page.heading(2, kind == ScalingKind::strong ? "Strong scaling: the same global batch"
                                              : "Weak scaling: the same batch per rank");
  for (const bool efficiency : {false, true}) {
    page.figure(plot_scaling(report.lines, kind, efficiency));
  }
  page.add("<table>\n" + html + "</table>\n");
  page.list(notes);
}

void add_details(const Measured& measured, const ReadOptions& options, Page& page) {
  const Run& run = *measured.run;
  page.heading(2, "Run " + run.name);
  const RunFacts& facts = run.facts;
  page.paragraph(
      fmt::format("{} parameters, sequence {}, batch {} in micro-batches of {}, {}; {}; {} "
                  "threads a rank; {}; {} on {}; started {}; {}",
                  facts.parameters, facts.sequence, facts.batch, facts.micro_batch, facts.precision,
                  facts.layout(), facts.threads, facts.schedule, facts.device, facts.processor,
                  facts.start, facts.versions),
      "note");
  std::vector<std::string> lines;
  for (const Finding& finding : measured.findings) lines.push_back(finding.text);
  if (!run.incomplete.empty()) lines.push_back("incomplete: " + run.incomplete);
  for (const std::string& note : run.notes) {
    if (!note.starts_with(shared_cores_text)) lines.push_back("note: " + note);
  }
  page.list(lines);
  if (!run.time.rows.empty()) page.add("<pre>" + html_text(timing_table(run.time)) + "</pre>\n");
  page.figure(plot_sections(run));
  page.figure(plot_communication(run));
  page.figure(plot_memory(run));
  try {
    if (auto plot = plot_trace(run, options)) page.figure(std::move(*plot));
  } catch (const Error& error) {
    page.paragraph(fmt::format("The trace cannot be drawn: {}", error.what()), "note");
  }
}

}  // namespace

std::string report_html(const Report& report) {
  Page page;
  page.heading(1, "Trireme: report");
  page.paragraph(fmt::format("{} runs, {} of them valid. {}", report.runs.size(),
                             report.measured.size(), method_text(report)));
  add_invalid(report, page);
  if (!report.measured.empty()) {
    add_runs(report, page);
    add_scaling(report, ScalingKind::strong, page);
    add_scaling(report, ScalingKind::weak, page);
    std::vector<const Run*> runs;
    for (const Measured& each : report.measured) runs.push_back(each.run);
    page.figure(plot_losses(runs));
    for (std::size_t i = 0; i < std::min(most_detailed, report.measured.size()); ++i) {
      add_details(report.measured[i], report.options, page);
    }
    if (report.measured.size() > most_detailed) {
      page.paragraph(
          fmt::format("Pictures of the first {} of {} valid runs; name fewer runs to see "
                      "those of others.",
                      most_detailed, report.measured.size()));
    }
  }
  return std::string("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n") +
         "<title>Trireme: report</title>\n<style>" + style + "</style>\n</head>\n<body>\n" +
         page.text() + "</body>\n</html>\n";
}

}  // namespace trireme::report
