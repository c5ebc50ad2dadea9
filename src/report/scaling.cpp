#include "trireme/report/scaling.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/device/config.hpp"
#include "trireme/report/formats.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

using Degrees = std::tuple<int, int, int, int, int>;  // tensor, context, pipeline, data, servers
Degrees degrees_of(const Run& run) {
  return {run.facts.tensor, run.facts.context, run.facts.pipeline, run.facts.data,
          run.facts.servers};
}

/// The sections that a method reads, so that another one's settings keep no runs apart.
std::vector<std::string> sections_of(const std::string& method) {
  if (method == "allreduce") return {};
  if (method == "average") return {"data_parallel", "average"};
  if (method == "server" || method == "async-server") return {"data_parallel", "server"};
  throw Error("data_parallel.method = {}: is none of ours; restore the record", method);
}

Estimate efficiency_of(const ScalingPoint& point, const ScalingPoint& first) {
  const Estimate &own = point.tokens_per_second, &base = first.tokens_per_second;
  const double ranks = static_cast<double>(first.ranks) / point.ranks;
  const bool itself = point.runs == first.runs;
  Estimate result{.n = std::min(own.n, base.n), .median = ranks * own.median / base.median};
  result.low = itself ? 1 : ranks * own.low / base.high;
  result.high = itself ? 1 : ranks * own.high / base.low;
  return result;
}

using Runs = std::vector<const Measured*>;

/// A point of each configuration, by ranks. On another number of nodes the same layout is another
/// configuration, not a repeat.
std::vector<ScalingPoint> configurations(const Runs& runs) {
  std::map<std::tuple<int, std::string, Degrees, std::int64_t, int, std::string>, Runs> repeats;
  for (const Measured* each : runs) {
    const RunFacts& facts = each->run->facts;
    repeats[{facts.ranks, each->run->label, degrees_of(*each->run), facts.micro_batch, facts.nodes,
             fingerprint(*each->run)}]
        .push_back(each);
  }
  std::vector<ScalingPoint> points;
  for (const auto& [key, same] : repeats) {
    const RunFacts& facts = same.front()->run->facts;
    ScalingPoint point{.ranks = facts.ranks,
                       .layout = facts.layout(),
                       .micro_batch = facts.micro_batch,
                       .nodes = facts.nodes,
                       .tokens_per_second = over_repeats(same, &Figures::tokens_per_second)};
    for (const Measured* each : same) point.runs.push_back(each->run);
    points.push_back(std::move(point));
  }
  return points;
}

bool faster(const ScalingPoint& a, const ScalingPoint& b) {
  return a.tokens_per_second.median > b.tokens_per_second.median;
}

/// What efficiency is against: the fastest point on the fewest ranks.
const ScalingPoint& reference_of(const std::vector<ScalingPoint>& points) {
  const auto first = std::min_element(
      points.begin(), points.end(), [](const ScalingPoint& a, const ScalingPoint& b) {
        return a.ranks != b.ranks ? a.ranks < b.ranks : faster(a, b);
      });
  return *first;
}

void set_efficiency(const ScalingPoint& reference, ScalingPoint& point) {
  point.efficiency = efficiency_of(point, reference);
  if (point.runs == reference.runs) return;
  point.reference = fmt::format("{} on {} rank{}", reference.name(), reference.ranks,
                                reference.ranks == 1 ? "" : "s");
}

/// Points by ranks; of several layouts or micro-batches at one number of ranks the fastest.
std::vector<ScalingPoint> points_of(const Runs& runs, const ScalingPoint& reference, bool& chosen) {
  std::map<int, ScalingPoint> fastest;
  for (ScalingPoint& point : configurations(runs)) {
    const auto found = fastest.find(point.ranks);
    if (found != fastest.end()) chosen = true;
    if (found == fastest.end() || faster(point, found->second)) {
      fastest[point.ranks] = std::move(point);
    }
  }
  std::vector<ScalingPoint> points;
  for (auto& [ranks, point] : fastest) {
    set_efficiency(reference, point);
    points.push_back(std::move(point));
  }
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

/// Runs of one work, and what their efficiency is against.
struct Group {
  ScalingKind kind;
  std::string work;
  ScalingPoint reference;
};

void add_line(const Group& group, const std::string& label, const Runs& runs,
              std::vector<ScalingLine>& lines) {
  bool chosen = false;
  ScalingLine line{.kind = group.kind,
                   .fingerprint = fingerprint(*runs.front()->run),
                   .label = group.work + "; " + label,
                   .points = points_of(runs, group.reference, chosen)};
  if (line.points.size() < 2) return;
  add_notes(chosen, line);
  lines.push_back(std::move(line));
}

struct AxisOf {
  const char* name;
  int RunFacts::*degree;
};
constexpr AxisOf axes[] = {{"tensor", &RunFacts::tensor},
                           {"context", &RunFacts::context},
                           {"pipeline", &RunFacts::pipeline},
                           {"data", &RunFacts::data}};

/// "data grows; tensor 2, pipeline 1 held".
std::string label_of(const AxisOf& grows, const RunFacts& facts) {
  std::string held;
  for (const AxisOf& axis : axes) {
    if (axis.degree == grows.degree) continue;
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", axis.name, facts.*axis.degree);
  }
  return fmt::format("{} grows; {} held", grows.name, held);
}

/// One line over all runs where layouts change from point to point, unless one of `lines` from
/// number `before` on is the same.
void add_fastest(const Group& group, const Runs& runs, std::size_t before,
                 std::vector<ScalingLine>& lines) {
  std::vector<ScalingLine> fastest;
  add_line(group, "the fastest layout at each number of ranks", runs, fastest);
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

/// All lines of runs that are alike but for their degrees.
void add_lines(const Group& group, const Runs& runs, std::vector<ScalingLine>& lines) {
  const std::size_t before = lines.size();
  for (const AxisOf& axis : axes) {
    std::map<std::vector<int>, Runs> held;
    for (const Measured* each : runs) {
      std::vector<int> others;
      for (const AxisOf& other : axes) {
        if (other.degree != axis.degree) others.push_back(each->run->facts.*other.degree);
      }
      held[others].push_back(each);
    }
    for (const auto& [others, same] : held) {
      add_line(group, label_of(axis, same.front()->run->facts), same, lines);
    }
  }
  std::set<Degrees> layouts;
  for (const Measured* each : runs) layouts.insert(degrees_of(*each->run));
  const bool covered =
      std::any_of(lines.begin() + static_cast<std::ptrdiff_t>(before), lines.end(),
                  [&](const ScalingLine& line) { return line.points.size() == layouts.size(); });
  if (!covered) add_fastest(group, runs, before, lines);
}

/// Lines of the layouts of a study.
void add_study(const Group& group, const Runs& runs, std::vector<ScalingLine>& lines) {
  const std::size_t before = lines.size();
  std::map<std::string, Runs> by_label;
  for (const Measured* each : runs) by_label[each->run->label].push_back(each);
  for (const auto& [label, same] : by_label) add_line(group, label, same, lines);
  if (by_label.size() > 1) add_fastest(group, runs, before, lines);
}

/// What runs of the same work have in common, and their batch.
using Work = std::tuple<ScalingKind, std::string, double>;

std::map<Work, Runs> by_work(const std::vector<Measured>& runs) {
  std::map<Work, Runs> groups;
  for (const Measured& each : runs) {
    if (!each.run->incomplete.empty()) continue;
    const RunFacts& facts = each.run->facts;
    json work = essentials(*each.run);
    for (const char* section : {"parallel", "zero", "context", "comm"}) work.erase(section);
    const auto batch = static_cast<double>(facts.batch);
    groups[{ScalingKind::strong, work.dump(), batch}].push_back(&each);
    // As a fraction, so that 3 sequences on 2 ranks are no whole number of them.
    groups[{ScalingKind::weak, work.dump(), batch / facts.ranks}].push_back(&each);
  }
  return groups;
}

Group group_of(const Work& work, const Runs& runs) {
  const auto& [kind, key, batch] = work;
  const bool strong = kind == ScalingKind::strong;
  return {.kind = kind,
          .work = fmt::format("batch {:.4g}{}", batch, strong ? "" : " per rank"),
          .reference = reference_of(configurations(runs))};
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
       {"model", "optim", "precision", "numerics", "parallel", "zero", "context", "comm", "data"}) {
    all[section] = config.value(section, json::object());
  }
  // The preset is only a name for other keys; the dataset is compared by its content.
  if (all["model"].is_object()) all["model"].erase("preset");
  if (all["data"].is_object() && record.contains("dataset")) {
    all["data"].erase("path");
    all["dataset"] = record.at("dataset");
    if (all["dataset"].contains("xxh3")) all["dataset"].erase("name");
  }
  // Settings of GPUs that are not the defaults.
  const json device = config.value("device", json::object());
  device::DeviceConfig built_in;
  config::Fields fields;
  fields.section("device", built_in);
  const json usual = fields.to_json().at("device");
  for (const auto& [key, value] : usual.items()) {
    if (key == "type" || !device.contains(key) || device.at(key) == value) continue;
    all["device_settings"][key] = device.at(key);
  }
  // Records of before there was another.
  json& precision = all["precision"];
  if (precision.is_object() && precision.value("rounding", json()) == "nearest") {
    precision.erase("rounding");
  }
  for (const std::string& section : sections_of(facts.method)) {
    all[section] = config.value(section, json::object());
  }
  for (const char* degree :
       {"layout", "tensor", "context", "pipeline", "data", "servers", "threads"}) {
    if (all["parallel"].is_object()) all["parallel"].erase(degree);
  }
  return all;
}

std::string fingerprint(const Run& run) {
  return fmt::format("{:08x}", crc32c(essentials(run).dump()));
}

std::map<std::string, json> flattened(const json& value) {
  std::map<std::string, json> flat;
  flatten(value, "", flat);
  return flat;
}

std::vector<std::string> differences(const Run& a, const Run& b) {
  const std::map<std::string, json> one = flattened(essentials(a)),
                                    other = flattened(essentials(b));
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

Estimate over_repeats(const std::vector<const Measured*>& repeats, Estimate Figures::*figure) {
  if (repeats.size() == 1) return repeats.front()->figures.*figure;
  std::vector<double> medians;
  for (const Measured* each : repeats) medians.push_back((each->figures.*figure).median);
  return estimate(std::move(medians));
}

std::string ScalingPoint::name() const {
  std::string label;
  for (const Run* run : runs) {
    if (run->label.empty() || (!label.empty() && run->label != label)) return layout;
    label = run->label;
  }
  return label.empty() ? layout : label;
}

const Prediction* Predictions::on(int ranks) const {
  const auto found = std::ranges::find(points, ranks, &Prediction::ranks);
  return found == points.end() ? nullptr : &*found;
}

std::vector<ScalingLine> scaling_lines(const std::vector<Measured>& runs) {
  std::vector<ScalingLine> lines;
  for (const auto& [work, same] : by_work(runs)) {
    const Group group = group_of(work, same);
    const bool study = std::none_of(same.begin(), same.end(),
                                    [](const Measured* each) { return each->run->label.empty(); });
    if (study) {
      add_study(group, same, lines);
      continue;
    }
    std::map<std::string, Runs> alike;
    for (const Measured* each : same) alike[fingerprint(*each->run)].push_back(each);
    for (const auto& [key, runs_of_group] : alike) add_lines(group, runs_of_group, lines);
  }
  return lines;
}

std::vector<WorkGroup> work_groups(const std::vector<Measured>& runs) {
  std::vector<WorkGroup> groups;
  for (const auto& [work, same] : by_work(runs)) {
    const Group group = group_of(work, same);
    WorkGroup found{.kind = group.kind, .work = group.work, .points = configurations(same)};
    if (found.points.size() < 2) continue;
    for (ScalingPoint& point : found.points) set_efficiency(group.reference, point);
    groups.push_back(std::move(found));
  }
  return groups;
}

}  // namespace trireme::report
