// Costs as text.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "trireme/core/config.hpp"
#include "trireme/schedule/simulate.hpp"

namespace trireme::schedule {

namespace {

/// "F,I,W".
class Line {
 public:
  Line(std::string_view text, std::string where) : rest_(text), where_(std::move(where)) {}

  std::array<double, 3> read() {
    std::array<double, 3> costs{};
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (i > 0 && !take(',')) fail();
      costs.at(i) = number();
    }
    if (!rest_.empty()) fail();
    return costs;
  }

 private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r"), rest_.size()));
  }
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  double number() {
    skip_blanks();
    double value = 0;
    const auto read = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (read.ec != std::errc() || !std::isfinite(value) || value < 0) fail();
    rest_.remove_prefix(static_cast<std::size_t>(read.ptr - rest_.data()));
    skip_blanks();
    return value;
  }
  [[noreturn]] void fail() const {
    throw AgreedError(
        "{}: is not the three costs F,I,W, each a number >= 0; write for example "
        "1,1,1 or 1,1.2,0.8",
        where_);
  }

  std::string_view rest_;
  std::string where_;
};

}  // namespace

Costs parse_costs(std::string_view text, const std::string& source, int virtual_stages) {
  const std::string shown = config::one_line(source);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos)
    text.remove_suffix(1);
  Costs costs;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string where = shown;
    if (text.find('\n') != text.npos) where += fmt::format(":{}", costs.forward.size() + 1);
    const auto [forward, input, weight] =
        Line(text.substr(begin, end - begin), std::move(where)).read();
    costs.forward.push_back(forward);
    costs.input.push_back(input);
    costs.weight.push_back(weight);
    begin = end + 1;
  }
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
