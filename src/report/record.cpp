#include "trireme/report/record.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/json.hpp"

#include "seal.hpp"
#include "untrusted.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path make_attempt(const fs::path& run_folder) {
  const fs::path attempts = run_folder / "attempts";
  std::error_code error;
  fs::create_directories(attempts, error);
  int last = 0;
  fs::directory_iterator entries;
  if (!error) entries = fs::directory_iterator(attempts, error);
  if (error) throw_file_error(attempts, "write the run's record", error.value());
  for (const auto& entry : entries) {
    last = std::max(last, attempt_number(entry.path().filename().string()));
  }
  // mkdir decides between two runs that start at once.
  for (int number = last + 1;; ++number) {
    fs::path folder = attempts / fmt::format("{:04}", number);
    if (::mkdir(folder.c_str(), 0777) == 0) {
      sync_path(attempts);
      return folder;
    }
    if (errno != EEXIST) throw_file_error(folder, "write the run's record", errno);
  }
}

std::string stream_name(int stream) {
  constexpr std::array names = {"compute", "communication", "loader", "device"};
  TRIREME_ASSERT(stream >= 0, "a span of stream {}", stream);
  const auto i = static_cast<std::size_t>(stream);
  return i < names.size() ? names[i] : fmt::format("device queue {}", i - names.size());
}

/// Of the record's files in an attempt but its summary.
json seals_of_files(const fs::path& attempt) {
  json seals = json::object();
  for (const char* name : {"run.json", "metrics.jsonl", "trace.json", "mllog.txt"}) {
    std::error_code error;
    if (!fs::is_regular_file(attempt / name, error)) continue;
    seals[name] = seal_of(read_small_file(attempt / name, largest_record_file));
  }
  return seals;
}

/// A file that fails once is not written any more: others go on.
template <class File, class Write>
void write_to(std::unique_ptr<File>& file, const Write& write) {
  if (!file) return;
  try {
    write(*file);
  } catch (const Error&) {
    file.reset();
    throw;
  }
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

int attempt_number(const std::string& name) {
  if (name.size() < 4 || name.size() > 8) return 0;
  if (name.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoi(name);
}

RunRecord::RunRecord(const fs::path& run_folder, const ReportConfig& config)
    : folder_(make_attempt(run_folder)) {
  if (config.mllog) mllog_ = std::make_unique<MlLog>(folder_ / "mllog.txt", config);
  if (!config.tensorboard) return;
  events_ = std::make_unique<EventFile>(run_folder / "tensorboard",
                                        attempt_number(folder_.filename().string()));
}

void RunRecord::write_run(json run) {
  run["format"] = record_format;
  const std::string text = json_text(run, 2) + "\n";
  replace_file(folder_ / "run.json", text);
  seal_ = seal_of(seal_ + text);
  write_to(mllog_, [&](MlLog& log) { log.begin_run(run); });
  write_to(events_,
           [&](EventFile& events) { events.start(run.value("first_step", std::int64_t{0}) + 1); });
}

void RunRecord::write_summary(json summary, bool whole) {
  std::string fault;
  try {
    write_to(mllog_, [&](MlLog& log) {
      log.end_run(summary.value("steps", std::int64_t{0}), whole ? "success" : "aborted");
    });
  } catch (const Error& error) {
    fault = error.what();
    summary.emplace("incomplete", fault);
  }
  summary["format"] = record_format;
  summary["seals"] = seals_of_files(folder_);
  replace_file(folder_ / "summary.json", with_seal(json_text(summary, 2)) + "\n");
  if (!fault.empty()) throw Error("{}", fault);
}

void RunRecord::write_step(const StepMetrics& metrics) {
  json line{{"type", "step"},
            {"step", metrics.step},
            {"tokens", metrics.tokens},
            {"loss", metrics.loss},
            {"gradient_norm", metrics.gradient_norm},
            {"learning_rate", metrics.learning_rate},
            {"seconds", metrics.seconds},
            {"tokens_per_second", metrics.tokens_per_second}};
  if (metrics.mfu != 0) line["mfu"] = metrics.mfu;
  if (!metrics.skipped.empty()) line["skipped"] = metrics.skipped;
  append(line);
  write_to(mllog_, [&](MlLog& log) { log.loss(metrics.step, metrics.loss); });
  Scalars scalars{{"train/loss", metrics.loss},
                  {"train/gradient_norm", metrics.gradient_norm},
                  {"train/learning_rate", metrics.learning_rate},
                  {"speed/seconds_per_step", metrics.seconds},
                  {"speed/tokens_per_second", metrics.tokens_per_second}};
  if (metrics.mfu != 0) scalars.emplace_back("speed/mfu", metrics.mfu);
  write_to(events_, [&](EventFile& events) { events.write(metrics.step, scalars); });
}

void RunRecord::begin_evaluation(std::int64_t step) {
  write_to(mllog_, [&](MlLog& log) { log.begin_evaluation(step); });
}

void RunRecord::write_evaluation(std::int64_t step, double loss, std::int64_t tokens,
                                 const std::map<std::string, double>& sources) {
  json line{{"type", "evaluation"}, {"step", step}, {"loss", loss}, {"tokens", tokens}};
  if (!sources.empty()) line["sources"] = sources;
  append(line);
  write_to(mllog_, [&](MlLog& log) { log.end_evaluation(step, loss); });
  Scalars scalars{{"validation/loss", loss}};
  for (const auto& [name, own] : sources) scalars.emplace_back("validation/loss/" + name, own);
  write_to(events_, [&](EventFile& events) { events.write(step, scalars); });
}

void RunRecord::write_event(std::int64_t step, const std::string& event, const std::string& text) {
  append({{"type", "event"}, {"step", step}, {"event", event}, {"text", text}});
}

// One write per line, so that a reader that follows the file sees whole lines, and a killed run
// leaves them. Each line's seal covers the one before.
void RunRecord::append(const json& line) {
  if (cut_) return;
  const fs::path path = folder_ / "metrics.jsonl";
  cut_ = true;
  if (metrics_.get() < 0) {
    metrics_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (metrics_.get() < 0) throw_file_error(path, "create", errno);
  }
  const std::string text = with_seal(json_text(line), seal_);
  write_all(metrics_, path, text + "\n");
  seal_ = seal_in(text);
  cut_ = false;
}

void RunRecord::write_trace(const std::vector<std::vector<Span>>& spans_by_rank) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char* separator = "\n";
  const auto event = [&](const json& value) {
    text += separator + json_text(value);
    separator = ",\n";
  };
  for (std::size_t rank = 0; rank < spans_by_rank.size(); ++rank) {
    const auto label = [&](const char* what, int tid, const std::string& name) {
      event({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", tid}, {"args", {{"name", name}}}});
    };
    label("process_name", 0, fmt::format("rank {}", rank));
    event({{"ph", "M"},
           {"name", "process_sort_index"},
           {"pid", rank},
           {"tid", 0},
           {"args", {{"sort_index", rank}}}});
    std::set<int> streams;
    for (const Span& span : spans_by_rank[rank]) streams.insert(span.stream);
    for (const int stream : streams) {
      label("thread_name", stream, stream_name(stream));
    }
    for (const Span& span : spans_by_rank[rank]) {
      event({{"ph", "X"},
             {"name", span.name},
             {"pid", rank},
             {"tid", span.stream},
             {"ts", span.begin_us},
             {"dur", span.duration_us}});
    }
  }
  replace_file(folder_ / "trace.json", text + "\n]}\n");
}

// CBOR keeps the bits of doubles.
std::vector<json> gather_json(const json& own, comm::Communicator& world, int root) {
  std::vector<json> all;
  for (const auto& bytes : world.gather_bytes(json::to_cbor(own), root)) {
    all.push_back(json::from_cbor(bytes));
  }
  return all;
}

std::vector<SectionTimes> section_table(const std::vector<json>& ranks) {
  std::set<std::string> names;
  for (const json& rank : ranks) {
    for (const auto& [name, seconds] : rank.items()) names.insert(name);
  }
  std::vector<SectionTimes> table;
  for (const std::string& name : names) {
    SectionTimes row{name, HUGE_VAL, 0, 0};
    for (const json& rank : ranks) {
      const double seconds = rank.value(name, 0.0);
      row.minimum = std::min(row.minimum, seconds);
      row.maximum = std::max(row.maximum, seconds);
      row.average += seconds / static_cast<double>(ranks.size());
    }
    table.push_back(std::move(row));
  }
  std::stable_sort(table.begin(), table.end(), [](const SectionTimes& a, const SectionTimes& b) {
    return a.average > b.average;
  });
  return table;
}

std::vector<SectionTimes> gather_sections(const Recorder& recorder, comm::Communicator& world) {
  return section_table(gather_json(recorder.seconds(), world));
}

Trace gather_trace(const Recorder& recorder, comm::Communicator& world, std::int64_t limit) {
  std::vector<Span> spans = recorder.spans();
  const auto share = static_cast<std::size_t>(std::max<std::int64_t>(limit / world.size(), 0));
  if (spans.size() > share) spans.resize(share);
  json mine = json::array();
  for (const Span& span : spans) {
    mine.push_back({span.name, span.stream, span.begin_us, span.duration_us});
  }
  Trace trace{{}, std::make_shared<std::set<std::string>>()};
  for (const auto& bytes : world.gather_bytes(json::to_cbor(mine), 0)) {
    auto& rank = trace.spans_by_rank.emplace_back();
    for (const json& span : json::from_cbor(bytes)) {
      const char* name = trace.names->insert(span[0].get<std::string>()).first->c_str();
      rank.push_back({name, span[1], span[2], span[3]});
    }
  }
  return trace;
}

std::vector<MemoryRow> gather_memory(const device::MemoryLedger& ledger,
                                     const std::map<device::Use, std::int64_t>& predicted,
                                     comm::Communicator& world,
                                     const std::set<device::Use>& in_part) {
  std::vector<MemoryRow> rows;
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    const auto found = predicted.find(use);
    const std::int64_t mine = found == predicted.end() ? 0 : found->second;
    MemoryRow row{std::string(device::name_of(use)), world.all_reduce(mine, comm::Reduction::max),
                  world.all_reduce(ledger.peak(use), comm::Reduction::max), in_part.contains(use)};
    if (row.predicted != 0 || row.measured != 0) rows.push_back(std::move(row));
  }
  return rows;
}

bool as_predicted(const std::vector<MemoryRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const MemoryRow& row) {
    return row.in_part || row.predicted == row.measured;
  });
}

std::string memory_table(const std::vector<MemoryRow>& rows, bool gpu) {
  // What a GPU and the host hold does not add up to anything.
  const auto on_host = [&](const MemoryRow& row) {
    return gpu && (row.name == device::name_of(device::Use::snapshot) ||
                   row.name == device::name_of(device::Use::offloaded));
  };
  MemoryRow sum{gpu ? "on the GPU" : "total"}, host{"on the host"};
  std::size_t width = gpu ? host.name.size() : 6;
  for (const MemoryRow& row : rows) {
    width = std::max(width, row.name.size());
    MemoryRow& to = on_host(row) ? host : sum;
    to.predicted += row.predicted;
    to.measured += row.measured;
    to.in_part = to.in_part || row.in_part;
  }
  std::string text =
      fmt::format("{:<{}} | {:>13} | {:>12} |\n", "memory", width, "predicted MiB", "measured MiB");
  text += std::string(width + 1, '-') + "+---------------+--------------+\n";
  const auto add = [&](const MemoryRow& row) {
    const std::int64_t difference = row.measured - row.predicted;
    const std::string mark = difference == 0 ? ""
                             : row.in_part   ? " predicted in part"
                                             : fmt::format(" ! differs by {:+} B", difference);
    text += fmt::format("{:<{}} | {:>13} | {:>12} |{}\n", row.name, width, mebibytes(row.predicted),
                        mebibytes(row.measured), mark);
  };
  for (const MemoryRow& row : rows) add(row);
  add(sum);
  if (gpu) add(host);
  return text;
}

std::string duration_text(double seconds) {
  // More than a million days is no estimate.
  if (!(seconds >= 0) || seconds > 1e11) return "-";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, whole % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                      int columns) {
  const std::string total = std::to_string(total_steps);
  struct Column {
    int rank;  // the highest go first; 0: stays
    std::string text;
  };
  std::vector<Column> shown = {
      {0, fmt::format("step {:>{}}/{}", metrics.step, total.size(), total)},
      {0, fmt::format("loss {:.4f}", metrics.loss)},
      {4, fmt::format("norm {:.3f}", metrics.gradient_norm)},
      {5, fmt::format("lr {:.1e}", metrics.learning_rate)},
      {2, fmt::format("{:.3f} s", metrics.seconds)},
      {1, fmt::format("{:.0f} tok/s", metrics.tokens_per_second)}};
  if (!metrics.skipped.empty()) shown.push_back({0, "SKIPPED: " + metrics.skipped});
  if (metrics.mfu != 0) shown.push_back({3, fmt::format("MFU {:.1f} %", 100 * metrics.mfu)});
  const std::string left = duration_text(seconds_left);
  if (left != "-") shown.push_back({0, "eta " + left});
  const auto line = [&] {
    std::string text;
    for (const Column& column : shown) text += (text.empty() ? "" : "  ") + column.text;
    return text;
  };
  for (int rank = 5; rank > 0 && columns > 0 && line().size() > static_cast<std::size_t>(columns);
       --rank) {
    std::erase_if(shown, [&](const Column& column) { return column.rank == rank; });
  }
  return line();
}

std::string figure_of_merit(double tokens_per_second) {
  if (!std::isfinite(tokens_per_second) || tokens_per_second <= 0) {
    return "Figure of Merit (FOM): none";
  }
  return fmt::format("Figure of Merit (FOM): {:.1f} tokens/s", tokens_per_second);
}

}  // namespace trireme::report
