// Where runs are, and how attempts become one run.
#include "trireme/report/runs.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/core/text.hpp"
#include "trireme/report/scaling.hpp"

#include "untrusted.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}
bool is_run(const fs::path& path) { return is_folder(path / "attempts"); }
bool is_attempt(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / "run.json", error);
}

/// Folders in `folder`, by name. Links are not followed: the search ends and finds nothing twice.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entries(folder, error), end; !error && entries != end;
       entries.increment(error)) {
    std::error_code kind;
    if (!entries->is_symlink(kind) && entries->is_directory(kind)) found.push_back(entries->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void collect(const fs::path& folder, int depth, std::vector<fs::path>& found) {
  if (is_run(folder) || is_attempt(folder)) {
    found.push_back(folder);
    return;
  }
  if (depth == 0) return;
  for (const fs::path& inner : folders_in(folder)) collect(inner, depth - 1, found);
}

/// Distinct values of `key` over the hosts, joined.
std::string over_hosts(const json& run, const char* key, const std::string& where) {
  std::set<std::string> values;
  const auto hosts = run.find("hosts");
  if (hosts == run.end() || !hosts->is_array() || hosts->empty()) {
    throw Error("{}: hosts are missing; restore the file", where);
  }
  for (const json& host : *hosts) {
    if (!host.is_object()) throw Error("{}: a host is no object; restore the file", where);
    values.insert(text_at(host, key, where));
  }
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

int small(const json& object, const char* key, const std::string& where, std::int64_t least = 1) {
  const std::int64_t value = integer_at(object, key, where);
  if (value < least || value > std::numeric_limits<int>::max()) {
    throw Error("{}: {} = {}: must be at least {}; restore the file", where, key, value, least);
  }
  return static_cast<int>(value);
}

/// Of operations: 0, or a number with which quotients stay finite.
double amount(const json& object, const char* key, const std::string& where) {
  const double value = number_at(object, key, where);
  if (value != 0 && !(value >= 1 && value <= 1e30)) {
    throw Error("{}: {} = {}: must be 0, or from 1 to 1e30; restore the file", where, key, value);
  }
  return value;
}

/// Degrees: "place" of format 2; format 1 has them in "layout" only.
void read_place(const json& run, const std::string& where, RunFacts& facts) {
  if (run.contains("place")) {
    const json& place = object_at(run, "place", where);
    facts.tensor = small(place, "tensor", where);
    if (place.contains("context")) facts.context = small(place, "context", where);
    facts.pipeline = small(place, "pipeline", where);
    facts.data = small(place, "data", where);
    if (place.contains("servers")) facts.servers = small(place, "servers", where, 0);
  } else {
    const json& parallel = object_at(object_at(run, "config", where), "parallel", where);
    facts.tensor = small(parallel, "tensor", where);
    facts.pipeline = small(parallel, "pipeline", where);
    facts.data = std::max(1, facts.ranks / (facts.tensor * facts.pipeline));
  }
  if (std::int64_t{facts.tensor} * facts.context * facts.pipeline * facts.data + facts.servers !=
      facts.ranks) {
    throw Error("{}: {} ranks in a layout of {}; restore the file", where, facts.ranks,
                facts.layout());
  }
}

RunFacts facts_of(const json& run, const std::string& where) {
  RunFacts facts;
  facts.ranks = small(run, "ranks", where);
  const json& config = object_at(run, "config", where);
  if (config.contains("data_parallel")) {  // older records lack it
    facts.method = text_at(object_at(config, "data_parallel", where), "method", where);
  }
  read_place(run, where, facts);
  facts.threads = small(run, "threads_per_rank", where);
  over_hosts(run, "name", where);
  facts.processor = over_hosts(run, "cpu", where);
  facts.nodes = static_cast<int>(run.at("hosts").size());
  const json& train = object_at(config, "train", where);
  const json& model = object_at(config, "model", where);
  const json& parallel = object_at(config, "parallel", where);
  facts.batch = small(train, "batch", where);
  facts.micro_batch = small(train, "micro_batch", where);
  facts.steps = integer_at(train, "steps", where);
  facts.sequence = small(model, "sequence", where);
  facts.layers = small(model, "layers", where);
  facts.parameters = integer_at(run, "parameters", where);
  facts.zero = small(parallel, "zero", where, 0);
  facts.virtual_stages = small(parallel, "virtual_stages", where);
  facts.schedule = text_at(parallel, "schedule", where);
  facts.precision = text_at(object_at(config, "precision", where), "compute", where);
  facts.device = run.contains("device") ? text_at(run, "device", where) : "unknown";
  facts.start = text_at(run, "start", where);
  for (const auto& [name, version] : object_at(run, "versions", where).items()) {
    facts.versions += (facts.versions.empty() ? "" : ", ") + name + " " +
                      (version.is_string() ? version.get<std::string>() : version.dump());
  }
  facts.flops_per_token = amount(run, "flops_per_token", where);
  const json& peak = object_at(run, "peak", where);
  facts.peak = facts.peak_at_start = amount(peak, "operations_per_second", where);
  facts.peak_kind = text_at(peak, "kind", where);
  return facts;
}

/// Sets run.facts.peak to the best that an attempt like the chosen one measured, at its start or at
/// its end: a busy machine measures too little.
void choose_peak(Run& run) {
  for (const Attempt& attempt : run.attempts) {
    const bool chosen = &attempt == &run.attempt();
    if (!chosen && (attempt.step_class.empty() || attempt.step_class != run.attempt().step_class)) {
      continue;
    }
    double at_end = 0;
    if (attempt.summary.is_object() && attempt.summary.contains("peak")) {
      const std::string where = (attempt.folder / "summary.json").string();
      at_end = amount(object_at(attempt.summary, "peak", where), "at_end", where);
    }
    if (chosen) run.facts.peak_at_end = at_end;
    const double at_start = chosen ? run.facts.peak_at_start : attempt.facts.peak_at_start;
    run.facts.peak = std::max({run.facts.peak, at_start, at_end});
  }
  const double start = run.facts.peak_at_start, end = run.facts.peak_at_end;
  if (end > 0 && std::abs(end - start) > 0.25 * start) {
    run.notes.push_back(
        fmt::format("the peak is {:.1f} GFLOP/s at the start and {:.1f} at the end: "
                    "MFU is of the better one",
                    start / 1e9, end / 1e9));
  }
}

/// See Attempt::step_class.
std::string step_class_of(const json& run, const RunFacts& facts) {
  json all = essentials(run, facts);
  all["layout"] = {facts.ranks,    facts.tensor, facts.context,
                   facts.pipeline, facts.data,   facts.servers};
  all["batch"] = {facts.batch, facts.micro_batch};
  all["hosts"] = run.at("hosts");
  const json& config = run.at("config");
  for (const auto& [section, key] :
       {std::pair{"checkpoint", "async"}, std::pair{"train", "check"}}) {
    const json values = config.value(section, json::object());
    all[key] = values.is_object() ? values.value(key, json()) : json();
  }
  return json_text(all);
}

std::vector<RankAccount> accounts_of(const Attempt& attempt) {
  std::vector<RankAccount> ranks;
  const std::string where = (attempt.folder / "summary.json").string();
  if (!attempt.summary.is_object() || !attempt.summary.contains("ranks")) return ranks;
  const json& list = attempt.summary.at("ranks");
  if (!list.is_array()) throw Error("{}: ranks is no list; restore the file", where);
  for (const json& entry : list) {
    if (!entry.is_object()) throw Error("{}: a rank is no object; restore the file", where);
    RankAccount account{.rank = small(entry, "rank", where, 0),
                        .tensor = small(entry, "tensor", where, 0),
                        .pipeline = small(entry, "pipeline", where, 0),
                        .data = small(entry, "data", where, 0),
                        .server = entry.contains("server"),
                        .host = entry.contains("host") ? text_at(entry, "host", where) : ""};
    const json& sections = object_at(entry, "sections", where);
    for (const auto& [name, seconds] : sections.items()) {
      account.sections[name] = number_at(sections, name.c_str(), where);
    }
    for (const auto& [name, volume] : object_at(entry, "communication", where).items()) {
      if (!volume.is_object()) throw Error("{}: {} is no object; restore the file", where, name);
      account.communication[name] = {.bytes = number_at(volume, "bytes_per_step", where),
                                     .least = number_at(volume, "least_bytes_per_step", where),
                                     .seconds = number_at(volume, "seconds_per_step", where)};
    }
    ranks.push_back(std::move(account));
  }
  return ranks;
}

TimeAccount time_of(const Attempt& attempt) {
  const std::string where = (attempt.folder / "summary.json").string();
  if (!attempt.summary.is_object() || !attempt.summary.contains("ranks")) return {};
  if (!attempt.summary.contains("seconds")) return {};
  return time_account(attempt.summary.at("ranks"), number_at(attempt.summary, "seconds", where),
                      where);
}

/// Appends `attempt`. Earlier attempts lose the steps that it repeats.
void merge(const Attempt& attempt, Run& run) {
  if (attempt.steps.empty()) return;
  const std::int64_t first = attempt.steps.front().step;
  const auto later = [first](const auto& entry) { return entry.step >= first; };
  const auto steps = std::erase_if(run.steps, later);
  std::erase_if(run.evaluations, later);
  if (steps > 0) {
    run.notes.push_back(fmt::format("attempt {:04} repeats {} from step {} on: they count once",
                                    attempt.number,
                                    counted(static_cast<std::int64_t>(steps), "step"), first));
  }
  run.steps.insert(run.steps.end(), attempt.steps.begin(), attempt.steps.end());
  run.evaluations.insert(run.evaluations.end(), attempt.evaluations.begin(),
                         attempt.evaluations.end());
}

void read_attempts(const fs::path& folder, Run& run) {
  if (!is_run(folder)) {
    run.attempts.push_back(read_attempt(folder));
  } else {
    for (const fs::path& path : folders_in(folder / "attempts")) {
      const std::string name = path.filename().string();
      const bool number = name.size() >= 4 && name.size() <= 8 &&
                          name.find_first_not_of("0123456789") == std::string::npos;
      if (number) run.attempts.push_back(read_attempt(path));
    }
  }
  std::sort(run.attempts.begin(), run.attempts.end(),
            [](const Attempt& a, const Attempt& b) { return a.number < b.number; });
  const auto twice =
      std::adjacent_find(run.attempts.begin(), run.attempts.end(),
                         [](const Attempt& a, const Attempt& b) { return a.number == b.number; });
  if (twice == run.attempts.end()) return;
  throw Error("{}: has the number of {}: their steps would count twice; move one of them away",
              twice->folder.string(), std::next(twice)->folder.string());
}

void add_changes(Run& run) {
  constexpr std::size_t most = 10;
  for (const Attempt& attempt : run.attempts) {
    const auto text = [&](const std::string& what) {
      return fmt::format("attempt {:04}: {}", attempt.number, what);
    };
    for (std::size_t i = 0; i < std::min(most, attempt.changes.size()); ++i) {
      run.faults.push_back(text(attempt.changes[i]) + "; restore the file");
    }
    if (attempt.changes.size() > most) {
      run.faults.push_back(text(fmt::format("{} more such", attempt.changes.size() - most)));
    }
    for (const std::string& missing : attempt.missing) run.notes.push_back(text(missing));
    if (!attempt.sealed && !attempt.steps.empty()) {
      run.notes.push_back(text("its record is not sealed (before format 3): edits are not found"));
    }
  }
}

/// Sets run.chosen; adds a note unless that is the last attempt with steps.
void choose_attempt(Run& run, const ReadOptions& options) {
  std::map<std::string, std::size_t> tried;  // counted steps by class
  std::size_t last = run.attempts.size(), best = last, most = 0;
  for (std::size_t i = run.attempts.size(); i-- > 0;) {
    if (run.attempts[i].steps.empty()) continue;
    if (last == run.attempts.size()) last = best = i;
    const std::string& step_class = run.attempts[i].step_class;
    if (step_class.empty() || tried.contains(step_class)) continue;
    run.chosen = i;
    tried[step_class] = counted_steps(run, options).size();
    if (tried[step_class] <= most) continue;
    most = tried[step_class];
    best = i;
  }
  if (last == run.attempts.size()) return;
  run.chosen = best;
  if (best == last || run.attempts[last].step_class == run.attempts[best].step_class) return;
  run.notes.push_back(
      fmt::format("figures are of attempts like attempt {:04}, {} counted steps; attempt "
                  "{:04}, the last one, has other settings, layout or hosts, and {} such steps",
                  run.attempts[best].number, most, run.attempts[last].number,
                  tried[run.attempts[last].step_class]));
}

}  // namespace

std::string RunFacts::layout() const {
  std::string text = fmt::format("tensor {}", tensor);
  if (context > 1) text += fmt::format(" × context {}", context);
  text += fmt::format(" × pipeline {} × data {}", pipeline, data);
  if (servers > 0) text += fmt::format(" + {} servers", servers);
  return method == "allreduce" ? text : text + ", " + method;
}

std::vector<fs::path> find_runs(const std::vector<std::string>& paths) {
  std::vector<fs::path> found;
  for (const std::string& path : paths) {
    std::vector<fs::path> here;
    collect(path, 4, here);
    if (here.empty()) {
      throw Error("{}: {}; name a run folder, an attempt or a folder of runs", path,
                  is_folder(path) ? "holds no run" : "is no folder");
    }
    found.insert(found.end(), here.begin(), here.end());
  }
  std::set<fs::path> seen;
  std::erase_if(found, [&seen](const fs::path& path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    return !seen.insert(error ? path : whole).second;
  });
  return found;
}

Run read_run(const fs::path& folder, const ReadOptions& options) {
  Run run{.name = plain_text(folder.lexically_normal().string()), .folder = folder};
  while (run.name.size() > 1 && run.name.back() == '/') run.name.pop_back();
  try {
    read_attempts(folder, run);
    add_changes(run);
    for (Attempt& attempt : run.attempts) {
      merge(attempt, run);
      if (attempt.steps.empty() || !attempt.run.is_object()) continue;
      attempt.facts = facts_of(attempt.run, (attempt.folder / "run.json").string());
      attempt.step_class = step_class_of(attempt.run, attempt.facts);
    }
    choose_attempt(run, options);
    if (run.attempts.empty()) throw Error("{}: there is no attempt in it", run.name);
    if (!run.attempt().run.is_object()) {
      throw Error("{}: there is no run.json: it ended before its first step",
                  run.attempt().folder.string());
    }
    run.facts = facts_of(run.attempt().run, (run.attempt().folder / "run.json").string());
    choose_peak(run);
    run.ranks = accounts_of(run.attempt());
    run.time = time_of(run.attempt());
    if (!adds_up(run.time)) {
      run.notes.emplace_back("its parts of time do not add up to its seconds: sections overlap");
    }
    find_faults(run, options);
  } catch (const std::exception& error) {
    run.faults.emplace_back(error.what());
  }
  run.incomplete = plain_text(run.incomplete);
  for (auto* lines : {&run.faults, &run.notes}) {
    for (std::string& line : *lines) line = plain_text(line);
  }
  return run;
}

}  // namespace trireme::report
