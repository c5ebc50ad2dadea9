#include "trireme/report/record.hpp"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/json.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The number of an attempt folder's name, or 0.
int attempt_number(const std::string& name) {
  if (name.size() < 4 || name.size() > 8) return 0;
  if (name.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoi(name);
}

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
  switch (stream) {
    case 0:
      return "compute";
    case 1:
      return "communication";
    case 2:
      return "loader";
    case 3:
      return "device";
    default:
      TRIREME_ASSERT(stream > 3, "a span of stream {}", stream);
      return fmt::format("device queue {}", stream - 4);
  }
}

}  // namespace

RunRecord::RunRecord(const fs::path& run_folder, const ReportConfig& config)
    : folder_(make_attempt(run_folder)) {
  if (config.mllog) mllog_ = std::make_unique<MlLog>(folder_ / "mllog.txt", config);
  if (config.tensorboard) events_ = std::make_unique<EventFile>(folder_);
}

void RunRecord::write_run(json run) {
  run["format"] = record_format;
  replace_file(folder_ / "run.json", json_text(run, 2) + "\n");
  if (mllog_) mllog_->begin_run(run);
}

void RunRecord::write_summary(json summary, bool whole) {
  summary["format"] = record_format;
  replace_file(folder_ / "summary.json", json_text(summary, 2) + "\n");
  if (mllog_) {
    mllog_->end_run(summary.value("steps", std::int64_t{0}), whole ? "success" : "aborted");
  }
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
  if (mllog_) mllog_->loss(metrics.step, metrics.loss);
  if (!events_) return;
  Scalars scalars{{"train/loss", metrics.loss},
                  {"train/gradient_norm", metrics.gradient_norm},
                  {"train/learning_rate", metrics.learning_rate},
                  {"speed/seconds_per_step", metrics.seconds},
                  {"speed/tokens_per_second", metrics.tokens_per_second}};
  if (metrics.mfu != 0) scalars.emplace_back("speed/mfu", metrics.mfu);
  events_->write(metrics.step, scalars);
}

void RunRecord::begin_evaluation(std::int64_t step) {
  if (mllog_) mllog_->begin_evaluation(step);
}

void RunRecord::write_evaluation(std::int64_t step, double loss, std::int64_t tokens) {
  append({{"type", "evaluation"}, {"step", step}, {"loss", loss}, {"tokens", tokens}});
  if (mllog_) mllog_->end_evaluation(step, loss);
  if (events_) events_->write(step, {{"validation/loss", loss}});
}

void RunRecord::write_event(std::int64_t step, const std::string& event, const std::string& text) {
  append({{"type", "event"}, {"step", step}, {"event", event}, {"text", text}});
}

// One write per line, so that a reader that follows the file sees whole lines, and a killed run
// leaves them.
void RunRecord::append(const json& line) {
  const fs::path path = folder_ / "metrics.jsonl";
  if (metrics_.get() < 0) {
    metrics_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (metrics_.get() < 0) throw_file_error(path, "create", errno);
  }
  write_all(metrics_, path, json_text(line) + "\n");
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

}  // namespace trireme::report
