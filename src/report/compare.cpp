// What differs between runs.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/core/text.hpp"
#include "trireme/report/page.hpp"

#include "html_page.hpp"
#include "untrusted.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

struct Row {
  std::string name;
  std::vector<std::string> values;  // of each run
};
struct Table {
  std::string title;
  std::vector<Row> rows;
};

std::string value_text(const std::map<std::string, json>& values, const std::string& key) {
  const auto found = values.find(key);
  if (found == values.end()) return "-";
  return plain_text(found->second.is_string() ? found->second.get<std::string>()
                                              : json_text(found->second));
}

/// The keys of `values`, one map for each run, in which they differ.
Table differing(const char* title, const std::vector<std::map<std::string, json>>& values) {
  Table table{title, {}};
  std::set<std::string> keys;
  for (const auto& each : values) {
    for (const auto& [key, value] : each) keys.insert(key);
  }
  for (const std::string& key : keys) {
    Row row{plain_text(key), {}};
    for (const auto& each : values) row.values.push_back(value_text(each, key));
    const auto same = [&](const std::string& value) { return value == row.values.front(); };
    if (!std::all_of(row.values.begin(), row.values.end(), same)) table.rows.push_back(row);
  }
  return table;
}

/// "dataset.xxh3", or of each source of a blend "dataset.NAME.xxh3"; none in older records.
std::map<std::string, json> dataset_hashes(const json& run) {
  std::map<std::string, json> hashes;
  const json dataset = run.value("dataset", json::object());
  if (!dataset.is_object()) return hashes;
  if (dataset.contains("xxh3")) hashes["dataset.xxh3"] = dataset.at("xxh3");
  for (const json& source : dataset.value("sources", json::array())) {
    if (!source.is_object() || !source.value("name", json()).is_string()) continue;
    const std::string key = fmt::format("dataset.{}.xxh3", source.at("name").get<std::string>());
    hashes[key] = source.value("xxh3", json());
  }
  return hashes;
}

/// Parts of run.json that describe a run, by table. Paths of output and the like are no difference.
std::vector<Table> settings(const Report& report) {
  std::vector<std::map<std::string, json>> config, versions, machine;
  for (const Measured& each : report.measured) {
    const json& run = each.run->attempt().run;
    const RunFacts& facts = each.run->facts;
    config.push_back(flattened(run.value("config", json::object())));
    config.back().erase("train.output");
    config.back().merge(dataset_hashes(run));
    versions.push_back(flattened(run.value("versions", json::object())));
    machine.push_back(flattened({{"device", facts.device},
                                 {"processor", facts.processor},
                                 {"nodes", facts.nodes},
                                 {"ranks", facts.ranks},
                                 {"layout", facts.layout()},
                                 {"threads_per_rank", facts.threads},
                                 {"cores_shared", run.value("cores_shared", json())},
                                 {"environment", run.value("environment", json::object())}}));
    std::string hosts;
    for (const json& host : run.at("hosts")) {
      hosts += (hosts.empty() ? "" : ", ") + host.at("name").get<std::string>();
    }
    machine.back()["hosts"] = hosts;
  }
  return {differing("configuration", config), differing("versions", versions),
          differing("machine", machine)};
}

/// `own` over `base`, as of the efficiency of a point: the quotient of both intervals' ends.
Estimate quotient(const Estimate& own, const Estimate& base) {
  if (own.n == 0 || base.n == 0) return {};
  return {.n = std::min(own.n, base.n),
          .median = own.median / base.median,
          .low = own.low / base.high,
          .high = own.high / base.low};
}

/// Training loss less the first run's, over the last quarter of the steps that both have.
Estimate loss_difference(const Run& run, const Run& first) {
  std::map<std::int64_t, double> before;
  for (const RecordedStep& step : first.steps) before[step.step] = step.loss;
  std::vector<double> differences;
  for (const RecordedStep& step : run.steps) {
    const auto found = before.find(step.step);
    if (found != before.end()) differences.push_back(step.loss - found->second);
  }
  const auto kept = static_cast<std::ptrdiff_t>((differences.size() + 3) / 4);
  return estimate(std::vector<double>(differences.end() - kept, differences.end()));
}

/// Bytes by use, of the rank that has most, and their sum.
std::map<std::string, double> memory_of(const Run& run) {
  std::map<std::string, double> memory;
  const json& summary = run.attempt().summary;
  if (!summary.is_object() || !summary.contains("memory")) return memory;
  const std::string file = (run.attempt().folder / "summary.json").string();
  double total = 0;
  for (const auto& [use, bytes] : object_at(summary, "memory", file).items()) {
    memory[plain_text(use)] = number_at(bytes, "measured", file);
    total += memory[plain_text(use)];
  }
  memory["total"] = total;
  return memory;
}

Table speed_table(const Report& report) {
  Table table{"speed",
              {{"step, ms", {}},
               {"tokens/s", {}},
               {"tokens/s, times the first", {}},
               {"MFU, %", {}},
               {"tokens/s of a rank, times the first", {}}}};
  const Measured& first = report.measured.front();
  for (const Measured& each : report.measured) {
    const Figures& figures = each.figures;
    const bool itself = &each == &first;
    const Estimate times = quotient(figures.tokens_per_second, first.figures.tokens_per_second);
    const double ranks = static_cast<double>(first.run->facts.ranks) / each.run->facts.ranks;
    table.rows[0].values.push_back(estimate_text(figures.seconds, 1e3));
    table.rows[1].values.push_back(estimate_text(figures.tokens_per_second));
    table.rows[2].values.push_back(itself ? "1" : estimate_text(times));
    table.rows[3].values.push_back(estimate_text(figures.mfu, 100));
    table.rows[4].values.push_back(itself ? "1" : estimate_text(times, ranks));
  }
  return table;
}

Table loss_table(const Report& report) {
  Table table{"loss",
              {{"last step", {}},
               {"training", {}},
               {"training, less the first's", {}},
               {"validation", {}}}};
  const Run& first = *report.measured.front().run;
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.4f}", value) : std::string("-");
  };
  for (const Measured& each : report.measured) {
    const Run& run = *each.run;
    table.rows[0].values.push_back(run.steps.empty() ? "-" : std::to_string(run.steps.back().step));
    table.rows[1].values.push_back(number(each.figures.loss));
    table.rows[2].values.push_back(&run == &first ? "0"
                                                  : estimate_text(loss_difference(run, first)));
    table.rows[3].values.push_back(number(each.figures.validation_loss));
  }
  return table;
}

Table memory_table(const Report& report) {
  std::vector<std::map<std::string, double>> memory;
  std::set<std::string> uses;
  for (const Measured& each : report.measured) {
    memory.push_back(memory_of(*each.run));
    for (const auto& [use, bytes] : memory.back()) uses.insert(use);
  }
  uses.erase("total");
  std::vector<std::string> order(uses.begin(), uses.end());
  order.emplace_back("total");
  Table table{"memory, MiB", {}};
  for (const std::string& use : order) {
    Row row{use, {}};
    for (const auto& each : memory) {
      const auto found = each.find(use);
      row.values.push_back(found == each.end() ? "-"
                                               : fmt::format("{:.3f}", found->second / (1 << 20)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<Table> tables_of(const Report& report) {
  if (report.measured.size() < 2) {
    std::string why;
    for (const Run& run : report.runs) {
      if (!run.valid()) why += fmt::format("; {}: {}", run.name, run.faults.front());
    }
    throw Error("compare: {} of {} give figures, at least 2 different runs are needed{}",
                report.measured.size(), counted(std::ssize(report.runs), "run"), why);
  }
  std::vector<Table> tables = settings(report);
  for (Table& table :
       std::vector<Table>{speed_table(report), loss_table(report), memory_table(report)}) {
    tables.push_back(std::move(table));
  }
  return tables;
}

std::vector<std::string> names_of(const Report& report) {
  std::vector<std::string> names;
  for (const Measured& each : report.measured) {
    names.push_back(each.run->name + (each.run->incomplete.empty() ? "" : " (incomplete)"));
  }
  return names;
}

constexpr const char* method =
    "Medians over counted steps with 95 % intervals, as of trireme report. \"times the first\": of "
    "both intervals the quotients of the ends. \"less the first's\": over the last quarter of the "
    "steps that both have. Settings that are equal are not shown.";

}  // namespace

std::string compare_text(const Report& report) {
  const std::vector<Table> tables = tables_of(report);
  const std::vector<std::string> names = names_of(report);
  std::string text;
  for (const Table& table : tables) {
    std::vector<std::size_t> widths{table.title.size()};
    for (const Row& row : table.rows) widths[0] = std::max(widths[0], row.name.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      widths.push_back(names[i].size());
      for (const Row& row : table.rows)
        widths.back() = std::max(widths.back(), row.values[i].size());
    }
    const auto add = [&](const std::string& name, const std::vector<std::string>& values) {
      std::string line = fmt::format("{:<{}}", name, widths[0]);
      for (std::size_t i = 0; i < values.size(); ++i) {
        line += fmt::format(" | {:<{}}", values[i], widths[i + 1]);
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    };
    if (table.rows.empty()) {
      text += table.title + ": no difference\n\n";
      continue;
    }
    add(table.title, names);
    for (const Row& row : table.rows) add(row.name, row.values);
    text += "\n";
  }
  for (const Run& run : report.runs) {
    if (!run.valid()) text += fmt::format("INVALID {}: {}\n", run.name, run.faults.front());
  }
  return text + method + "\n";
}

json compare_json(const Report& report) {
  json all{{"format", 1}, {"runs", names_of(report)}, {"method", method}};
  for (const Table& table : tables_of(report)) {
    json& rows = all["tables"][table.title] = json::object();
    for (const Row& row : table.rows) rows[row.name] = row.values;
  }
  return all;
}

std::string compare_html(const Report& report) {
  HtmlPage page;
  page.heading(1, "Trireme: comparison");
  std::vector<NamedRun> named;
  for (const Measured& each : report.measured) named.emplace_back(each.run->name, each.run);
  const std::vector<Table> tables = tables_of(report);
  page.add("<div class=\"charts\">\n");
  page.figure(plot_losses(named));
  page.figure(plot_step_times(named, report.options));
  page.figure(plot_memory_totals(named));
  page.figure(plot_time_shares(named));
  page.add("</div>\n");
  for (const Table& table : tables) {
    page.heading(2, table.title);
    if (table.rows.empty()) {
      page.paragraph("No difference.");
      continue;
    }
    std::vector<std::string> head{""};
    for (const std::string& name : names_of(report)) head.push_back(name);
    std::string html = html_row("th", head);
    for (const Row& row : table.rows) {
      std::vector<std::string> cells{row.name};
      cells.insert(cells.end(), row.values.begin(), row.values.end());
      html += html_row("td", cells);
    }
    page.add("<table>\n" + html + "</table>\n");
  }
  page.paragraph(method, "note");
  return page.text("Trireme: comparison");
}

}  // namespace trireme::report
