#include "trireme/report/scaling.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "trireme/core/error.hpp"
#include "trireme/report/formats.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

using Degrees = std::tuple<int, int, int, int>;  // tensor, pipeline, data, servers
Degrees degrees_of(const Run& run) {
  return {run.facts.tensor, run.facts.pipeline, run.facts.data, run.facts.servers};
}

/// The sections that a method reads, so that another one's settings keep no runs apart.
std::vector<std::string> sections_of(const std::string& method) {
  if (method == "allreduce") return {};
  if (method == "average") return {"data_parallel", "average"};
  if (method == "server" || method == "async-server") return {"data_parallel", "server"};
  throw Error("data_parallel.method = {}: is none of ours; restore the record", method);
}

Estimate over_repeats(const std::vector<const Measured*>& repeats) {
  if (repeats.size() == 1) return repeats.front()->figures.tokens_per_second;
  std::vector<double> medians;
  for (const Measured* each : repeats) {
    medians.push_back(each->figures.tokens_per_second.median);
  }
  return estimate(std::move(medians));
}

Estimate efficiency_of(const ScalingPoint& point, const ScalingPoint& first) {
  const Estimate &own = point.tokens_per_second, &base = first.tokens_per_second;
  const double ranks = static_cast<double>(first.ranks) / point.ranks;
  Estimate result{.n = std::min(own.n, base.n), .median = ranks * own.median / base.median};
  result.low = &point == &first ? 1 : ranks * own.low / base.high;
  result.high = &point == &first ? 1 : ranks * own.high / base.low;
  return result;
}

/// Points by ranks; of several layouts or micro-batches at one number of ranks the fastest.
std::vector<ScalingPoint> points_of(const std::vector<const Measured*>& runs, bool& chosen) {
  // On another number of nodes the same layout is another configuration, not a repeat.
  std::map<std::tuple<int, Degrees, std::int64_t, int>, std::vector<const Measured*>> repeats;
  for (const Measured* each : runs) {
    const RunFacts& facts = each->run->facts;
    repeats[{facts.ranks, degrees_of(*each->run), facts.micro_batch, facts.nodes}].push_back(each);
  }
  std::map<int, ScalingPoint> fastest;
  for (const auto& [key, same] : repeats) {
    const RunFacts& facts = same.front()->run->facts;
    ScalingPoint point{.ranks = facts.ranks,
                       .layout = facts.layout(),
                       .micro_batch = facts.micro_batch,
                       .nodes = facts.nodes,
                       .tokens_per_second = over_repeats(same)};
    for (const Measured* each : same) point.runs.push_back(each->run);
    const auto found = fastest.find(facts.ranks);
    if (found != fastest.end()) chosen = true;
    if (found == fastest.end() ||
        found->second.tokens_per_second.median < point.tokens_per_second.median) {
      fastest[facts.ranks] = std::move(point);
    }
  }
  std::vector<ScalingPoint> points;
  for (auto& [ranks, point] : fastest) points.push_back(std::move(point));
  for (ScalingPoint& point : points) point.efficiency = efficiency_of(point, points.front());
  return points;
}

void add_notes(bool chosen, ScalingLine& line) {
  std::set<std::int64_t> micro_batches, nodes;
  std::set<std::size_t> repeats;
  for (const ScalingPoint& point : line.points) {
    micro_batches.insert(point.micro_batch);
    nodes.insert(point.nodes);
    repeats.insert(point.runs.size());
  }
  if (chosen) {
    line.notes.emplace_back(
        "several configurations (layout, micro-batch, nodes) at one number of ranks: the fastest "
        "of "
        "each is shown");
  }
  if (micro_batches.size() > 1) {
    line.notes.push_back(fmt::format("unlike: the micro-batch, {} to {} sequences",
                                     *micro_batches.begin(), *micro_batches.rbegin()));
  }
  if (nodes.size() > 1) {
    line.notes.push_back(
        fmt::format("points span {} to {} nodes", *nodes.begin(), *nodes.rbegin()));
  }
  if (repeats.size() > 1) {
    line.notes.push_back(
        fmt::format("unlike: {} to {} runs per point", *repeats.begin(), *repeats.rbegin()));
  }
}

void add_line(ScalingKind kind, const std::string& label, const std::vector<const Measured*>& runs,
              std::vector<ScalingLine>& lines) {
  bool chosen = false;
  ScalingLine line{.kind = kind,
                   .fingerprint = fingerprint(*runs.front()->run),
                   .label = label,
                   .points = points_of(runs, chosen)};
  if (line.points.size() < 2) return;
  add_notes(chosen, line);
  lines.push_back(std::move(line));
}

struct AxisOf {
  const char* name;
  int RunFacts::*degree;
};
constexpr AxisOf axes[] = {
    {"tensor", &RunFacts::tensor}, {"pipeline", &RunFacts::pipeline}, {"data", &RunFacts::data}};

/// "data grows; tensor 2, pipeline 1 held".
std::string label_of(const AxisOf& grows, const RunFacts& facts) {
  std::string held;
  for (const AxisOf& axis : axes) {
    if (axis.degree == grows.degree) continue;
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", axis.name, facts.*axis.degree);
  }
  return fmt::format("{} grows; {} held", grows.name, held);
}

/// All lines of runs that are alike but for their degrees.
void add_lines(ScalingKind kind, const std::string& work, const std::vector<const Measured*>& runs,
               std::vector<ScalingLine>& lines) {
  const std::size_t before = lines.size();
  for (const AxisOf& axis : axes) {
    std::map<std::vector<int>, std::vector<const Measured*>> held;
    for (const Measured* each : runs) {
      std::vector<int> others;
      for (const AxisOf& other : axes) {
        if (other.degree != axis.degree) others.push_back(each->run->facts.*other.degree);
      }
      held[others].push_back(each);
    }
    for (const auto& [others, same] : held) {
      add_line(kind, work + "; " + label_of(axis, same.front()->run->facts), same, lines);
    }
  }
  std::set<int> ranks;
  std::set<Degrees> layouts;
  for (const Measured* each : runs) {
    ranks.insert(each->run->facts.ranks);
    layouts.insert(degrees_of(*each->run));
  }
  const bool covered =
      std::any_of(lines.begin() + static_cast<std::ptrdiff_t>(before), lines.end(),
                  [&](const ScalingLine& line) { return line.points.size() == layouts.size(); });
  if (covered || ranks.size() < 2) return;
  std::vector<ScalingLine> fastest;
  add_line(kind, work + "; the fastest layout at each number of ranks", runs, fastest);
  if (fastest.empty()) return;
  const auto runs_of = [](const ScalingLine& line) {
    std::set<const Run*> on;
    for (const ScalingPoint& point : line.points) on.insert(point.runs.begin(), point.runs.end());
    return on;
  };
  const bool known = std::any_of(
      lines.begin() + static_cast<std::ptrdiff_t>(before), lines.end(),
      [&](const ScalingLine& line) { return runs_of(line) == runs_of(fastest.front()); });
  if (known) return;
  fastest.front().notes.insert(fastest.front().notes.begin(),
                               "unlike: the layout changes along the line");
  lines.push_back(std::move(fastest.front()));
}

void flatten(const json& value, const std::string& key, std::map<std::string, json>& flat) {
  if (!value.is_object()) {
    flat[key] = value;
    return;
  }
  for (const auto& [name, inner] : value.items()) {
    flatten(inner, key.empty() ? name : fmt::format("{}.{}", key, name), flat);
  }
}

}  // namespace

json essentials(const Run& run) { return essentials(run.attempt().run, run.facts); }

json essentials(const json& record, const RunFacts& facts) {
  json all = {{"device", facts.device},
              {"processor", facts.processor},
              {"threads_per_rank", facts.threads},
              {"versions", record.value("versions", json::object())}};
  const json config = record.value("config", json::object());
  for (const char* section :
       {"model", "optim", "precision", "numerics", "parallel", "zero", "comm", "data"}) {
    all[section] = config.value(section, json::object());
  }
  // The preset is only a name for other keys; the dataset is compared by its content.
  if (all["model"].is_object()) all["model"].erase("preset");
  if (all["data"].is_object() && record.contains("dataset")) {
    all["data"].erase("path");
    all["dataset"] = record.at("dataset");
  }
  // Records of before there was another.
  json& precision = all["precision"];
  if (precision.is_object() && precision.value("rounding", json()) == "nearest") {
    precision.erase("rounding");
  }
  for (const std::string& section : sections_of(facts.method)) {
    all[section] = config.value(section, json::object());
  }
  for (const char* degree : {"tensor", "pipeline", "data", "servers", "threads"}) {
    if (all["parallel"].is_object()) all["parallel"].erase(degree);
  }
  return all;
}

std::string fingerprint(const Run& run) {
  return fmt::format("{:08x}", crc32c(essentials(run).dump()));
}

std::vector<std::string> differences(const Run& a, const Run& b) {
  std::map<std::string, json> one, other;
  flatten(essentials(a), "", one);
  flatten(essentials(b), "", other);
  std::vector<std::string> keys;
  for (const auto& [key, value] : one) {
    const auto found = other.find(key);
    if (found == other.end() || found->second != value) keys.push_back(key);
  }
  for (const auto& [key, value] : other) {
    if (!one.contains(key)) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<ScalingLine> scaling_lines(const std::vector<Measured>& runs) {
  std::vector<ScalingLine> lines;
  // Weak: work per rank as a fraction, so that 3 sequences on 2 ranks are no whole number of them.
  std::map<std::pair<std::string, std::int64_t>, std::vector<const Measured*>> strong;
  std::map<std::pair<std::string, double>, std::vector<const Measured*>> weak;
  for (const Measured& each : runs) {
    if (!each.run->incomplete.empty()) continue;
    const RunFacts& facts = each.run->facts;
    const std::string key = fingerprint(*each.run);
    strong[{key, facts.batch}].push_back(&each);
    weak[{key, static_cast<double>(facts.batch) / facts.ranks}].push_back(&each);
  }
  for (const auto& [key, same] : strong) {
    add_lines(ScalingKind::strong, fmt::format("batch {}", key.second), same, lines);
  }
  for (const auto& [key, same] : weak) {
    add_lines(ScalingKind::weak, fmt::format("batch {:.4g} per rank", key.second), same, lines);
  }
  return lines;
}

}  // namespace trireme::report
