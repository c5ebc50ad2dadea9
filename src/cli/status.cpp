// trireme status: a run as its folder shows it, while it runs or after.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <thread>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/core/files.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/run_lock.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* status_examples = R"(Examples:
  trireme status run              step, loss, speed, left, last checkpoint
  trireme status run --follow     then steps and events, until the run ends
Only files of the folder are read, on any machine that sees it.)";

/// The newest attempt of a run folder. Throws Error where there is none.
fs::path newest_attempt(const fs::path& run) {
  fs::path newest;
  int last = 0;
  std::error_code error;
  for (fs::directory_iterator entry(run / "attempts", error), end; !error && entry != end;
       entry.increment(error)) {
    const int number = report::attempt_number(entry->path().filename().string());
    if (number <= last) continue;
    last = number;
    newest = entry->path();
  }
  if (newest.empty()) {
    throw Error("{}: has no attempts/; name the folder of a run (train.output)", run.string());
  }
  return newest;
}

/// Lines of metrics.jsonl as they are appended; the first time those of its last 256 KiB.
class Lines {
 public:
  explicit Lines(fs::path path) : path_(std::move(path)) {}

  std::vector<json> read() {
    std::vector<json> lines;
    std::error_code error;
    if (!fs::exists(path_, error)) return lines;
    const InputFile file(path_);
    constexpr std::int64_t most = 1 << 18;
    if (at_ < 0) at_ = std::max<std::int64_t>(0, file.size() - most);
    std::string text(static_cast<std::size_t>(std::clamp<std::int64_t>(file.size() - at_, 0, most)),
                     '\0');
    text.resize(file.read_at(text.data(), text.size(), at_));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      json value = json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                               text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      if (value.is_object()) lines.push_back(std::move(value));  // else the middle of a line
    }
    at_ += static_cast<std::int64_t>(begin);
    return lines;
  }

 private:
  fs::path path_;
  std::int64_t at_ = -1;
};

template <class T>
T value_of(const json& object, const char* key, T absent) {
  const auto found = object.find(key);
  if (found == object.end()) return absent;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<T>() : absent;
  } else {
    return found->is_number() ? found->get<T>() : absent;
  }
}

/// What has been read of an attempt.
class Progress {
 public:
  explicit Progress(const fs::path& run) : run_(run), attempt_(newest_attempt(run)) {}

  /// Reads what is new. Returns lines for --follow: events, and the last step.
  std::string update() {
    read_facts();
    std::string text, step;
    for (const json& line : lines_.read()) {
      const auto type = value_of<std::string>(line, "type", "");
      if (type == "event") {
        const auto event = value_of<std::string>(line, "event", "");
        const std::string shown = fmt::format(
            "step {}: {}: {}", value_of<std::int64_t>(line, "step", 0), config::one_line(event),
            config::one_line(value_of<std::string>(line, "text", "")));
        text += shown + "\n";
        if (event == "failed") failure_ = config::one_line(value_of<std::string>(line, "text", ""));
        if (event != "save" && event != "changed") warnings_.push_back(shown);
        if (warnings_.size() > 3) warnings_.pop_front();
      } else if (type == "evaluation") {
        valid_ = fmt::format("{:.4f} after step {}", value_of(line, "loss", std::nan("")),
                             value_of<std::int64_t>(line, "step", 0));
        text += "valid loss " + valid_ + "\n";
      } else if (type == "step") {
        step_ = {.step = value_of<std::int64_t>(line, "step", 0),
                 .tokens = value_of<std::int64_t>(line, "tokens", 0),
                 .loss = value_of(line, "loss", std::nan("")),
                 .gradient_norm = value_of(line, "gradient_norm", std::nan("")),
                 .learning_rate = value_of(line, "learning_rate", 0.0),
                 .seconds = value_of(line, "seconds", 0.0),
                 .tokens_per_second = value_of(line, "tokens_per_second", 0.0),
                 .mfu = value_of(line, "mfu", 0.0),
                 .skipped = config::one_line(value_of<std::string>(line, "skipped", ""))};
        seconds_.push_back(step_.seconds);
        if (seconds_.size() > 20) seconds_.pop_front();
        step = report::step_line(step_, total_, left()) + "\n";
      }
    }
    return text + step;
  }

  bool running() const { return train::lock_owner(run_).alive; }

  std::string summary() const {
    std::string text = line("run", fmt::format("{}, attempt {}", config::one_line(run_.string()),
                                               attempt_.filename().string()));
    text += line("state", state());
    const auto ranks = value_of<std::int64_t>(facts_, "ranks", 0);
    if (ranks > 0) {
      text += line("ranks", fmt::format("{}: {}", grouped(ranks),
                                        value_of<std::string>(facts_, "layout", "")));
    }
    if (step_.step == 0) {
      text += line("step", first_step() == 0 ? "none yet"
                                             : fmt::format("{} of {}, none in this attempt",
                                                           grouped(first_step()), grouped(total_)));
    } else {
      text += line("step", fmt::format("{} of {} ({:.1f} %), {} ago", grouped(step_.step),
                                       grouped(total_), 100.0 * share(), age(metrics())));
      text += line("loss",
                   fmt::format("{:.4f}, gradient norm {:.3f}{}", step_.loss, step_.gradient_norm,
                               step_.skipped.empty() ? "" : ", skipped: " + step_.skipped));
      if (!valid_.empty()) text += line("valid loss", valid_);
      text += line("speed", fmt::format("{} tokens/s, {:.3g} s a step (median of {})",
                                        grouped(static_cast<std::int64_t>(step_.tokens_per_second)),
                                        median(), seconds_.size()));
      if (running()) text += line("left", report::duration_text(left()));
    }
    const auto newest = checkpoint::newest(run_);
    text += line("checkpoint", newest ? fmt::format("{}, {} ago", newest->filename().string(),
                                                    age(*newest / "manifest.json"))
                                      : "none");
    for (const std::string& warning : warnings_) text += line("warning", warning);
    return text;
  }

  /// Whether the run has begun another attempt since.
  bool superseded() const { return newest_attempt(run_) != attempt_; }

 private:
  /// run.json, which is written once the model is there.
  void read_facts() {
    const fs::path file = attempt_ / "run.json";
    std::error_code error;
    if (!facts_.empty() || !fs::exists(file, error)) return;
    facts_ = parse_json(read_small_file(file, std::int64_t{1} << 28), file.string());
    const json::json_pointer steps("/config/train/steps");
    if (facts_.contains(steps) && facts_.at(steps).is_number()) total_ = facts_.at(steps);
  }
  /// The step at which the attempt began.
  std::int64_t first_step() const { return value_of<std::int64_t>(facts_, "first_step", 0); }

  fs::path metrics() const { return attempt_ / "metrics.jsonl"; }
  double share() const {
    return total_ > 0 ? static_cast<double>(step_.step) / static_cast<double>(total_) : 0;
  }
  double median() const {
    std::vector<double> sorted(seconds_.begin(), seconds_.end());
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) return 0;
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  }
  double left() const {
    return median() * static_cast<double>(std::max<std::int64_t>(0, total_ - step_.step));
  }

  std::string state() const {
    const train::LockOwner owner = train::lock_owner(run_);
    if (owner.alive) return "running, " + owner.name;
    if (!failure_.empty()) return "failed: " + failure_;
    std::error_code error;
    if (!fs::exists(attempt_ / "summary.json", error)) {
      return "ended without a summary: killed, or its node is lost; start the same command again";
    }
    return std::max(step_.step, first_step()) >= total_ ? "done" : "stopped before its last step";
  }
  static std::string age(const fs::path& file) {
    std::error_code error;
    const auto time = fs::last_write_time(file, error);
    if (error) return "unknown time";
    return report::duration_text(std::max(
        0.0, std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count()));
  }

  fs::path run_, attempt_;
  json facts_ = json::object();
  std::int64_t total_ = 0;
  Lines lines_{metrics()};
  report::StepMetrics step_;
  std::deque<double> seconds_;
  std::deque<std::string> warnings_;
  std::string valid_, failure_;
};

std::string show(const fs::path& run, bool follow) {
  Progress progress(run);
  progress.update();
  if (!follow || !progress.running()) return progress.summary();
  const auto print = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  print(progress.summary());
  while (progress.running()) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (progress.superseded()) progress = Progress(run);
    print(progress.update());
  }
  return progress.update() + progress.summary();
}

}  // namespace

void add_status(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("status", "How far a run is, while it runs");
  struct Options {
    std::string run;
    bool follow = false;
  };
  auto options = std::make_shared<Options>();
  sub->add_option("run", options->run, "the run's folder (train.output)")
      ->required()
      ->type_name("RUN");
  sub->add_flag("--follow", options->follow, "go on with each step and event until\nthe run ends");
  sub->footer(status_examples);
  sub->callback([options, &command] {
    command.run = printing([options] { return show(options->run, options->follow); });
  });
}

}  // namespace trireme::cli
