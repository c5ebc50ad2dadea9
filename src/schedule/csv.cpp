// Schedules as text. The text may come from anywhere: sizes are bounded before anything is made.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "trireme/core/config.hpp"
#include "trireme/core/files.hpp"
#include "trireme/schedule/schedule.hpp"

namespace trireme::schedule {

namespace {

constexpr int most_digits = 6;  // of a virtual stage or a micro-batch
constexpr std::size_t most_stages = 65'536;
constexpr std::int64_t most_bytes = std::int64_t{64} << 20;

std::optional<Kind> kind_of(char written) {
  for (const Kind kind :
       {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight}) {
    if (letter(kind) == written) return kind;
  }
  return std::nullopt;
}

/// A cell as it is written.
struct Cell {
  int virtual_stage = 0;
  Kind kind = Kind::forward;
  int micro_batch = 0;
  std::size_t column = 0;  // of its first character, from 0
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& source, Sizes expected)
      : text_(text), source_(config::one_line(source)), expected_(expected) {}

  Schedule parse(const std::string& name) {
    while (!text_.empty() && std::string_view(" \t\r\n").find(text_.back()) != text_.npos)
      text_.remove_suffix(1);
    if (text_.empty()) fail(0, 0, "holds no schedule", "write one line per stage");
    std::vector<std::vector<Cell>> lines;
    for (std::size_t begin = 0; begin <= text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      if (lines.size() == most_stages)
        fail(lines.size(), 0, fmt::format("has more than {} lines", most_stages),
             "write one line per stage");
      lines.push_back(read_line(text_.substr(begin, end - begin), lines.size()));
      begin = end + 1;
    }
    return assemble(lines, name);
  }

 private:
  [[noreturn]] void fail(std::size_t line, std::size_t column, const std::string& rule,
                         const std::string& remedy) const {
    throw AgreedError("{}:{}:{}: {}; {}", source_, line + 1, column + 1, rule, remedy);
  }

  std::vector<Cell> read_line(std::string_view line, std::size_t number) const {
    std::vector<Cell> cells;
    for (std::size_t begin = 0; begin <= line.size();) {
      const std::size_t end = std::min(line.find(',', begin), line.size());
      const std::string_view blank = " \t\r";
      const std::size_t first = std::min(line.find_first_not_of(blank, begin), end);
      const std::size_t last = line.substr(0, end).find_last_not_of(blank);
      if (first < end)
        cells.push_back(read_cell(line.substr(first, last + 1 - first), number, first));
      begin = end + 1;
    }
    return cells;
  }

  Cell read_cell(std::string_view text, std::size_t line, std::size_t column) const {
    Cell cell;
    cell.column = column;
    const char* const end = text.data() + text.size();
    const auto number = [&](const char* from, int& value) {
      // from_chars would take a sign.
      if (from == end || *from < '0' || *from > '9') return from;
      const auto read = std::from_chars(from, std::min(end, from + most_digits), value);
      return read.ec == std::errc() ? read.ptr : from;
    };
    const char* at = number(text.data(), cell.virtual_stage);
    const bool staged = at != text.data() && at != end;
    const auto kind = staged ? kind_of(*at) : std::nullopt;
    if (kind) {
      cell.kind = *kind;
      const char* const digits = at + 1;
      at = number(digits, cell.micro_batch);
      if (at == end && at != digits) return cell;
    }
    const std::string shown = config::one_line(std::string(text.substr(0, 24)));
    fail(line, column,
         fmt::format("\"{}{}\" is not virtual stage, F, B, I or W, micro-batch", shown,
                     text.size() > 24 ? "…" : ""),
         "write for example 0F0, 2I0, 2W0 or 1B3");
  }

  void check_size(const std::string& what, int expected, int found, const std::string& set) const {
    if (expected == 0 || expected == found) return;
    fail(0, 0, fmt::format("the file is for {} {}, not {}", found, what, expected),
         fmt::format("use a file for {} {}, or {}", expected, what, set));
  }

  Schedule assemble(const std::vector<std::vector<Cell>>& lines, const std::string& name) const {
    Schedule plan{name, static_cast<int>(lines.size()), 0, 0, {}};
    check_size("stages", expected_.stages, plan.stages,
               fmt::format("parallel.pipeline = {}", plan.stages));
    for (std::size_t line = 0; line < lines.size(); ++line) {
      auto& actions = plan.actions.emplace_back();
      for (const Cell& cell : lines[line]) {
        const int owner = cell.virtual_stage % plan.stages;
        if (owner != static_cast<int>(line))
          fail(line, cell.column,
               fmt::format("virtual stage {} of {} stages belongs to stage {}, line {}",
                           cell.virtual_stage, plan.stages, owner, owner + 1),
               "move the cell there");
        const Action action{cell.kind, cell.micro_batch, cell.virtual_stage / plan.stages};
        check_range(line, cell, action);
        plan.chunks = std::max(plan.chunks, action.chunk + 1);
        plan.micro_batches = std::max(plan.micro_batches, action.micro_batch + 1);
        actions.push_back(action);
      }
    }
    if (plan.chunks == 0)
      fail(0, 0, "holds no actions", "write cells such as 0F0 and 0B0, one line per stage");
    check_size("virtual stages per stage", expected_.chunks, plan.chunks,
               fmt::format("parallel.virtual_stages = {}", plan.chunks));
    check_size("micro-batches", expected_.micro_batches, plan.micro_batches,
               fmt::format("{} micro-batches", plan.micro_batches));
    return plan;
  }

  void check_range(std::size_t line, const Cell& cell, const Action& action) const {
    if (expected_.chunks > 0 && action.chunk >= expected_.chunks)
      fail(line, cell.column,
           fmt::format("virtual stage {} does not exist: {} stages with {} virtual stages each",
                       cell.virtual_stage, expected_.stages, expected_.chunks),
           "virtual stages count from 0");
    if (expected_.micro_batches > 0 && action.micro_batch >= expected_.micro_batches)
      fail(line, cell.column,
           fmt::format("micro-batch {} does not exist: there are {}", cell.micro_batch,
                       expected_.micro_batches),
           "micro-batches count from 0");
  }

  std::string_view text_;
  std::string source_;
  Sizes expected_;
};

}  // namespace

Schedule parse_schedule(std::string_view text, const std::string& source, Sizes expected) {
  Schedule plan = Parser(text, source, expected).parse("file:" + source);
  validate(plan);
  return plan;
}

Schedule read_schedule(const std::filesystem::path& path, Sizes expected) {
  return parse_schedule(read_schedule_text(path), path.string(), expected);
}

std::optional<std::string> path_of(std::string_view name) {
  constexpr std::string_view prefix = "file:";
  if (!name.starts_with(prefix)) return std::nullopt;
  return std::string(name.substr(prefix.size()));
}

std::string read_schedule_text(const std::filesystem::path& path) {
  const std::string shown = config::one_line(path.string());
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw AgreedError("{}: is a folder; name a CSV file", shown);
  if (!std::filesystem::exists(path, error))
    throw AgreedError("{}: cannot be read: {}; name an existing CSV file", shown,
                      std::generic_category().message(error ? error.value() : ENOENT));
  InputFile file(path);
  if (file.size() > most_bytes)
    throw AgreedError("{}: is larger than {} MiB; is it the right file?", shown, most_bytes >> 20);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(text.data(), text.size()));
  return text;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  int stage = 0;
  for (const auto& actions : schedule.actions) {
    std::string line;
    for (const Action& action : actions)
      line += (line.empty() ? "" : ",") + to_string(schedule, stage, action);
    text += line + "\n";
    ++stage;
  }
  return text;
}

}  // namespace trireme::schedule
