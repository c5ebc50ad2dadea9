// Schedules and costs as text, which is not trusted: sizes are bounded before anything is made.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "trireme/core/config.hpp"
#include "trireme/core/files.hpp"
#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

namespace {

constexpr int most_digits = 6;  // of a virtual stage or a micro-batch
constexpr std::size_t most_stages = 65'536;
constexpr std::string_view blanks = " \t\r\n";

std::string_view without_blanks_at_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

/// use(line, number) for each line of `text`, from 0.
template <class Use>
void for_lines(std::string_view text, const Use& use) {
  std::size_t number = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    use(text.substr(begin, end - begin), number++);
    begin = end + 1;
  }
}

std::optional<Kind> kind_of(char written) {
  for (const Kind kind : kinds) {
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
      : text_(without_blanks_at_end(text)),
        source_(config::one_line(source)),
        expected_(expected) {}

  Schedule parse(const std::string& name) {
    if (text_.empty()) fail(0, 0, "holds no schedule", "write one line per stage");
    std::vector<std::vector<Cell>> lines;
    for_lines(text_, [&](std::string_view line, std::size_t number) {
      if (number == most_stages)
        fail(number, 0, fmt::format("has more than {} lines", most_stages),
             "write one line per stage");
      lines.push_back(read_line(line, number));
    });
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
      const std::size_t first = std::min(line.find_first_not_of(blanks, begin), end);
      const std::size_t last = line.substr(0, end).find_last_not_of(blanks);
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

/// The three costs of a line "F,I,W".
std::array<double, 3> costs_of(std::string_view line, const std::string& where) {
  std::array<double, 3> costs{};
  const auto skip_blanks = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
  };
  for (double& cost : costs) {
    skip_blanks();
    const auto read = std::from_chars(line.data(), line.data() + line.size(), cost);
    const bool valid = read.ec == std::errc() && std::isfinite(cost) && cost >= 0;
    line.remove_prefix(static_cast<std::size_t>(read.ptr - line.data()));
    skip_blanks();
    const bool last = &cost == &costs.back();
    if (!valid || !(last ? line.empty() : line.starts_with(',')))
      throw AgreedError(
          "{}: is not the three costs F,I,W, each a number >= 0; write for example "
          "1,1,1 or 1,1.2,0.8",
          where);
    if (!last) line.remove_prefix(1);
  }
  return costs;
}

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
  return read_named_file(path, "CSV", std::int64_t{64} << 20);
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

Costs parse_costs(std::string_view text, const std::string& source, int virtual_stages) {
  const std::string shown = config::one_line(source);
  text = without_blanks_at_end(text);
  const bool several = text.find('\n') != text.npos;
  Costs costs;
  for_lines(text, [&](std::string_view line, std::size_t number) {
    const auto [forward, input, weight] =
        costs_of(line, several ? fmt::format("{}:{}", shown, number + 1) : shown);
    costs.forward.push_back(forward);
    costs.input.push_back(input);
    costs.weight.push_back(weight);
  });
  const std::size_t lines = costs.forward.size();
  if (lines == 1)
    costs = Costs::uniform(virtual_stages, costs.forward[0], costs.input[0], costs.weight[0]);
  if (costs.forward.size() != static_cast<std::size_t>(virtual_stages))
    throw AgreedError(
        "{}: has {} lines of costs for {} virtual stages; write one line for each, or "
        "one for all",
        shown, lines, virtual_stages);
  double sum = 0;
  for (const auto* vector : {&costs.forward, &costs.input, &costs.weight})
    sum = std::accumulate(vector->begin(), vector->end(), sum);
  if (!(sum > 0 && sum < 1e100))
    throw AgreedError("{}: the costs add up to {}; they must be more than 0 and less than 1e100",
                      shown, sum);
  return costs;
}

Costs read_costs(const std::filesystem::path& path, int virtual_stages) {
  return parse_costs(read_schedule_text(path), path.string(), virtual_stages);
}

}  // namespace trireme::schedule
