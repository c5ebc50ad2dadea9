// Reading the files of one attempt, which may have been damaged, cut or written by hand.
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/record.hpp"
#include "trireme/report/runs.hpp"

#include "seal.hpp"
#include "untrusted.hpp"

namespace trireme::report {

using nlohmann::json;

namespace {

namespace fs = std::filesystem;

/// The content of a file; empty: it is not there.
std::string text_of(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) ? read_small_file(path, largest_record_file) : std::string();
}

json read_json(const std::string& text, const fs::path& path) {
  std::error_code error;
  if (text.empty() && !fs::exists(path, error)) return nullptr;
  json value = parse_json(text, path.string());
  if (!value.is_object()) throw Error("{}: is not a JSON object; restore the file", path.string());
  return value;
}

/// Seals of an attempt's files as they are now, against those that were written. docs/formats.md.
class SealCheck {
 public:
  SealCheck(Attempt& attempt, const std::string& run) : attempt_(attempt), run_(run) {}

  void line(std::string_view text, std::int64_t number) {
    const std::string name = fmt::format("metrics.jsonl:{}", number);
    const std::string seal = seal_in(text);
    if (seal.empty()) {
      unsealed(name);
    } else if (attempt_.sealed = true; !seal_holds(text, seal_)) {
      // The first line after run.json was written covers it.
      const bool after_run = !run_passed_ && seal_holds(text, seal_of(seal_ + run_));
      if (!after_run) changed(run_passed_ ? name : "run.json or " + name);
      run_passed_ = run_passed_ || after_run;
    }
    seal_ = seal;
  }

  void summary(std::string_view text) {
    if (text.empty()) return;
    if (text.ends_with('\n')) text.remove_suffix(1);
    if (seal_in(text).empty()) {
      unsealed("summary.json");
    } else if (attempt_.sealed = true; !seal_holds(text)) {
      changed("summary.json");
    }
    const json& seals = attempt_.summary.contains("seals") ? attempt_.summary.at("seals") : json();
    for (const auto& [name, seal] : seals.items()) file(name, seal);
    for (const char* name : {"run.json", "metrics.jsonl"}) {
      const bool there = *name == 'r' || !attempt_.steps.empty();
      if (there && !seals.contains(name)) unsealed(name);
    }
  }

  /// What has no seal, where something has one or the format asks for it.
  void finish() {
    const auto of_format = [](const json& file) {
      const auto format = file.is_object() ? file.find("format") : file.end();
      return file.is_object() && format != file.end() && format->is_number() &&
             *format >= first_sealed_format;
    };
    if (of_format(attempt_.run) || of_format(attempt_.summary)) attempt_.sealed = true;
    if (!attempt_.sealed) return;
    for (const std::string& name : unsealed_) {
      attempt_.changes.push_back(name + " has lost its seal");
    }
  }

 private:
  void changed(const std::string& name) {
    attempt_.changes.push_back(name + " is not as it was written");
  }
  void unsealed(const std::string& name) { unsealed_.push_back(name); }

  void file(const std::string& name, const json& seal) {
    if (name.find('/') != name.npos || name == "..") return changed("summary.json");
    const fs::path path = attempt_.folder / name;
    std::error_code error;
    if (!fs::exists(path, error)) {
      const bool gives_figures = name == "run.json" || name == "metrics.jsonl";
      (gives_figures ? attempt_.changes : attempt_.missing).push_back(name + " is missing");
    } else if ((name == "run.json" ? seal_of(run_) : seal_of(text_of(path))) != seal) {
      changed(name);
    }
  }

  Attempt& attempt_;
  const std::string& run_;
  std::string seal_;  // of the line before
  bool run_passed_ = false;
  std::vector<std::string> unsealed_;
};

void read_line(const json& line, const std::string& where, Attempt& attempt) {
  const std::string type = text_at(line, "type", where);
  const std::int64_t step = integer_at(line, "step", where);
  if (step < 0) throw Error("{}: step = {}: must not be negative; restore the file", where, step);
  if (type == "step") {
    RecordedStep found{.step = step,
                       .tokens = integer_at(line, "tokens", where),
                       .loss = number_at(line, "loss", where),
                       .gradient_norm = number_at(line, "gradient_norm", where),
                       .seconds = number_at(line, "seconds", where),
                       .tokens_per_second = optional_number_at(line, "tokens_per_second", where),
                       .mfu = optional_number_at(line, "mfu", where),
                       .skipped = line.contains("skipped") ? text_at(line, "skipped", where) : "",
                       .attempt = attempt.number,
                       .place = static_cast<std::int64_t>(attempt.steps.size()) + 1};
    // Clocks resolve a nanosecond at best, and speeds must stay finite.
    if (!(found.seconds >= 1e-9 && found.seconds <= 1e12)) {
      throw Error("{}: seconds = {}: must be from 1e-9 to 1e12; restore the file", where,
                  found.seconds);
    }
    if (!attempt.steps.empty() && step != attempt.steps.back().step + 1) {
      throw Error("{}: step {} follows step {}; restore the file", where, step,
                  attempt.steps.back().step);
    }
    attempt.steps.push_back(std::move(found));
  } else if (type == "evaluation") {
    attempt.evaluations.push_back({step, number_at(line, "loss", where)});
  } else if (type == "event") {
    attempt.events.push_back({step, text_at(line, "event", where), text_at(line, "text", where)});
  }  // later formats may have others
}

void read_metrics(const fs::path& path, Attempt& attempt, SealCheck& seals) {
  const std::string text = text_of(path);
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == text.npos) {
      attempt.cut = true;  // killed in the middle of a write
      return;
    }
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const std::string_view whole = std::string_view(text).substr(begin, end - begin);
    seals.line(whole, number);
    const json line = parse_json(whole, where);
    if (!line.is_object()) throw Error("{}: is not a JSON object; restore the file", where);
    read_line(line, where, attempt);
    begin = end + 1;
  }
}

}  // namespace

Attempt read_attempt(const fs::path& folder) {
  Attempt attempt{.folder = folder};
  const std::string name = (folder / "").parent_path().filename().string();
  if (!name.empty() && name.size() <= 8 &&
      name.find_first_not_of("0123456789") == std::string::npos) {
    attempt.number = std::stoi(name);
  }
  const std::string run = text_of(folder / "run.json"), summary = text_of(folder / "summary.json");
  attempt.run = read_json(run, folder / "run.json");
  attempt.summary = read_json(summary, folder / "summary.json");
  SealCheck seals(attempt, run);
  read_metrics(folder / "metrics.jsonl", attempt, seals);
  seals.summary(summary);
  seals.finish();
  return attempt;
}

}  // namespace trireme::report
