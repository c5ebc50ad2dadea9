// Reading the files of one attempt, which may have been damaged, cut or written by hand.
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/runs.hpp"

#include "untrusted.hpp"

namespace trireme::report {

using nlohmann::json;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t largest_file = std::int64_t{1} << 30;

json read_json(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  json value = parse_json(read_small_file(path, largest_file), path.string());
  if (!value.is_object()) throw Error("{}: is not a JSON object; restore the file", path.string());
  return value;
}

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

void read_metrics(const fs::path& path, Attempt& attempt) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  const std::string text = read_small_file(path, largest_file);
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == text.npos) {
      attempt.cut = true;  // killed in the middle of a write
      return;
    }
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const json line = parse_json(std::string_view(text).substr(begin, end - begin), where);
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
  attempt.run = read_json(folder / "run.json");
  attempt.summary = read_json(folder / "summary.json");
  read_metrics(folder / "metrics.jsonl", attempt);
  return attempt;
}

}  // namespace trireme::report
