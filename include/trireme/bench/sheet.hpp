// Output of a benchmark: on rank 0 a table, line by line as it is measured, and at the
// end the same as JSON in Google Benchmark's layout, so that its tools read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/bench/measure.hpp"

namespace trireme::bench {

/// One measurement. Counters are numbers beside the times; rates are per second.
struct Entry {
  std::string name;  // "all_reduce/sum/fp32/1048576/in_place"
  std::int64_t iterations = 0;
  Times times;
  int threads = 1;
  std::vector<std::pair<std::string, double>> counters;
};

class Sheet {
 public:
  struct Column {
    std::string title, unit;
    int width = 0;
  };

  /// `is_root`: on this rank (0). The others collect nothing.
  explicit Sheet(bool is_root) : is_root_(is_root) {}
  /// A line "# KEY: VALUE" of the table, and a member of the JSON's context.
  void note(const std::string& key, const nlohmann::json& value);
  /// The columns of the rows that follow; their two lines begin with "#".
  void columns(std::vector<Column> columns);
  /// One row; a cell for each column, right-aligned.
  void row(const std::vector<std::string>& cells);
  void add(Entry entry);
  /// Columns `before`, the four of the times in microseconds (average, min, max, p99), `after`, and
  /// "#wrong".
  void result_columns(std::vector<Column> before, const std::vector<Column>& after);
  /// A row of these and `entry`, with the wrong results over all ranks; none: not checked.
  void result(Entry entry, std::vector<std::string> before, const std::vector<std::string>& after,
              std::optional<std::int64_t> wrong);
  /// Wrong results: added up, and the last line of the table.
  void wrong(std::int64_t count) { wrong_ += count; }
  std::int64_t wrong() const { return wrong_; }
  /// {"context": …, "benchmarks": [{"name", "run_name", "run_type", "repetitions",
  /// "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit" (us), and
  /// each counter}]}. Google Benchmark's context members have its names.
  nlohmann::json json() const;

 private:
  bool is_root_;
  std::vector<Column> columns_;
  nlohmann::json context_ = nlohmann::json::object();
  std::vector<Entry> entries_;
  std::int64_t wrong_ = 0;
};

/// Numbers as cells: four or five digits, however large; and times in microseconds.
std::string cell(double value);
std::string microseconds(double seconds);

}  // namespace trireme::bench
