#include "trireme/bench/measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>

#include <sys/utsname.h>
#include <unistd.h>

namespace trireme::bench {
namespace {

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z", &parts);
  return text;
}

nlohmann::json machine_context() {
  utsname system{};
  uname(&system);
  double load[3] = {0, 0, 0};
  const int known = getloadavg(load, 3);
  nlohmann::json loads = nlohmann::json::array();
  for (int i = 0; i < known; ++i) loads.push_back(load[i]);
  return {{"date", local_time()},    {"host_name", system.nodename},
          {"executable", "trireme"}, {"num_cpus", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"load_avg", loads},       {"library_build_type", TRIREME_BUILD_TYPE}};
}

}  // namespace

Times times_of(std::vector<double> seconds) {
  TRIREME_ASSERT(!seconds.empty(), "no iterations");
  std::sort(seconds.begin(), seconds.end());
  const std::size_t count = seconds.size();
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {.minimum = seconds.front(),
          .average = sum / static_cast<double>(count),
          .maximum = seconds.back(),
          .p99 = seconds[(99 * count + 99) / 100 - 1]};
}

Times times_over_ranks(comm::Communicator& world, const std::vector<double>& own) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  std::vector<double> all;
  for (const auto& theirs : world.all_gather_bytes({bytes, own.size() * sizeof(double)})) {
    const std::size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(double));
    if (!theirs.empty()) std::memcpy(all.data() + before, theirs.data(), theirs.size());
  }
  return times_of(std::move(all));
}

void Sheet::note(const std::string& key, const nlohmann::json& value) {
  if (!is_root_) return;
  context_[key] = value;
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  std::printf("# %s: %s\n", key.c_str(), text.c_str());
}

void Sheet::columns(std::vector<Column> columns) {
  columns_ = std::move(columns);
  if (!is_root_) return;
  std::string titles = "#", units = "#";
  for (const Column& column : columns_) {
    titles += fmt::format(" {:>{}}", column.title, column.width);
    const std::string unit = column.unit.empty() ? "" : "(" + column.unit + ")";
    units += fmt::format(" {:>{}}", unit, column.width);
  }
  std::printf("%s\n%s\n", titles.c_str(), units.c_str());
  std::fflush(stdout);
}

void Sheet::row(const std::vector<std::string>& cells) {
  TRIREME_ASSERT(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(),
                 columns_.size());
  if (!is_root_) return;
  std::string text = " ";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format(" {:>{}}", cells[i], columns_[i].width);
  }
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);  // a long series is watched as it goes
}

void Sheet::add(Entry entry) {
  if (is_root_) entries_.push_back(std::move(entry));
}

void Sheet::result_columns(std::vector<Column> before, const std::vector<Column>& after) {
  for (const char* time : {"time", "min", "max", "p99"}) before.push_back({time, "us", 9});
  before.insert(before.end(), after.begin(), after.end());
  before.push_back({"#wrong", "", 6});
  columns(std::move(before));
}

void Sheet::result(Entry entry, std::vector<std::string> before,
                   const std::vector<std::string>& after, std::optional<std::int64_t> wrong) {
  const Times& times = entry.times;
  for (const double seconds : {times.average, times.minimum, times.maximum, times.p99}) {
    before.push_back(microseconds(seconds));
  }
  before.insert(before.end(), after.begin(), after.end());
  before.push_back(wrong ? std::to_string(*wrong) : "N/A");
  row(before);
  wrong_ += wrong.value_or(0);
  if (wrong) entry.counters.emplace_back("wrong", static_cast<double>(*wrong));
  add(std::move(entry));
}

nlohmann::json Sheet::json() const {
  nlohmann::json context = machine_context();
  context.update(context_);
  nlohmann::json all = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    // Ranks spend their time in the work and in waiting for it, so the processor's time adds
    // nothing to the clock's.
    const double time = 1e6 * entry.times.average;
    nlohmann::json one{{"name", entry.name},
                       {"run_name", entry.name},
                       {"run_type", "iteration"},
                       {"repetitions", 1},
                       {"repetition_index", 0},
                       {"threads", entry.threads},
                       {"iterations", entry.iterations},
                       {"real_time", time},
                       {"cpu_time", time},
                       {"time_unit", "us"},
                       {"time_min", 1e6 * entry.times.minimum},
                       {"time_max", 1e6 * entry.times.maximum},
                       {"time_p99", 1e6 * entry.times.p99}};
    for (const auto& [name, value] : entry.counters) one[name] = value;
    all.push_back(std::move(one));
  }
  return {{"context", context}, {"benchmarks", all}};
}

std::string cell(double value) {
  const double size = std::abs(value);
  if (size >= 1000 || value == 0) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  if (size >= 0.1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

std::string microseconds(double seconds) { return cell(1e6 * seconds); }

}  // namespace trireme::bench
