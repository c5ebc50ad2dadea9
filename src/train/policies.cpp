#include "trireme/train/policies.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

namespace trireme::train {

namespace {

/// Written by the handler alone: nothing else is safe there.
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) {
  const int before = caught_signal.exchange(signal, std::memory_order_relaxed);
  if (signal != SIGINT || before != SIGINT) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // ends the process once this handler returns
}

/// What schedulers and launchers send. Not INT: a user may want to end a start that hangs.
constexpr int held_signals[] = {SIGTERM, SIGUSR1, SIGUSR2};

struct NamedSignal {
  std::string_view name;
  int number;
};
constexpr NamedSignal known_signals[] = {{"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},
                                         {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"ALRM", SIGALRM},
                                         {"XCPU", SIGXCPU}, {"CONT", SIGCONT}, {"URG", SIGURG}};

/// The words between separators.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t at = text.find(separator);
    words.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return words;
    text.remove_prefix(at + 1);
  }
}

std::optional<double> number(std::string_view text) {
  const auto value = to_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

std::map<int, std::string> parse_signals(std::string_view names) {
  std::map<int, std::string> signals;
  if (names.empty() || names == "none") return signals;
  for (std::string_view name : split(names, ',')) {
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    const std::string_view shown = name;
    if (name.starts_with("SIG")) name.remove_prefix(3);
    bool found = false;
    for (const NamedSignal& known : known_signals) {
      if (known.name != name) continue;
      signals.emplace(known.number, "SIG" + std::string(name));
      found = true;
    }
    if (found) continue;
    std::string all;
    for (const NamedSignal& known : known_signals) {
      all += fmt::format("{}{}", all.empty() ? "" : ", ", known.name);
    }
    throw ConfigError("train.signals", std::string(names),
                      fmt::format("\"{}\" is not a signal that can be caught", shown),
                      fmt::format("use none, or some of {}", all));
  }
  return signals;
}

void hold_signals() {
  sigset_t held;
  ::sigemptyset(&held);
  for (const int signal : held_signals) ::sigaddset(&held, signal);
  ::pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

SignalWatch::SignalWatch(std::map<int, std::string> signals) : signals_(std::move(signals)) {
  caught_signal = 0;
  ::sigemptyset(&watched_);
  for (const auto& [signal, name] : signals_) ::sigaddset(&watched_, signal);
  ::pthread_sigmask(SIG_BLOCK, &watched_, &mask_before_);
  for (const auto& [signal, name] : signals_) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;  // system calls under way continue
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, &before_[signal]);
  }
  taker_ = std::thread([this] {
    ::pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
    ends_.acquire();
  });
  // Those that are not watched take effect from here on; the others once this object is gone.
  sigset_t others;
  ::sigemptyset(&others);
  for (const int signal : held_signals) {
    ::sigdelset(&mask_before_, signal);
    if (!signals_.contains(signal)) ::sigaddset(&others, signal);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &others, nullptr);
}

SignalWatch::~SignalWatch() {
  ends_.release();
  taker_.join();
  // One that nobody took would end the process once it is as before.
  const timespec at_once{};
  while (!signals_.empty() && ::sigtimedwait(&watched_, nullptr, &at_once) > 0) {
  }
  for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalWatch::caught() const { return caught_signal.load(std::memory_order_relaxed); }

std::optional<double> parse_duration(std::string_view text) {
  const auto refuse = [&] {
    return ConfigError("train.time_limit", std::string(text),
                       "must be seconds, M:S, H:M:S or D-H:M:S",
                       "write for example 5400 or 1:30:00");
  };
  if (text.empty() || text == "none") return std::nullopt;
  double seconds = 0;
  std::string_view rest = text;
  if (const std::size_t dash = rest.find('-'); dash != std::string_view::npos && dash > 0) {
    const auto days = number(rest.substr(0, dash));
    rest.remove_prefix(dash + 1);
    if (!days || split(rest, ':').size() != 3) throw refuse();
    seconds = 86400 * *days;
  }
  const auto words = split(rest, ':');
  if (words.size() > 3) throw refuse();
  double part = 0;
  for (const std::string_view word : words) {
    const auto value = number(word);
    if (!value) throw refuse();
    part = 60 * part + *value;
  }
  seconds += part;
  if (seconds == 0) return std::nullopt;
  return seconds;
}

std::optional<double> slurm_seconds_left() {
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  if (end == nullptr) return std::nullopt;
  const auto moment = number(end);
  if (!moment || *moment == 0) return std::nullopt;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return *moment - now.count();
}

std::function<double()> steady_seconds() {
  using Clock = std::chrono::steady_clock;
  return [begin = Clock::now()] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
}

StopSources stop_sources(const TrainConfig& config) {
  const auto watch = std::make_shared<SignalWatch>(parse_signals(config.signals));
  return {.now = steady_seconds(), .scheduler_seconds = slurm_seconds_left, .signal = [watch] {
            return watch->caught();
          }};
}

StopPolicy::StopPolicy(const TrainConfig& config, StopSources sources)
    : signals_(parse_signals(config.signals)),
      limit_(parse_duration(config.time_limit)),
      margin_(config.time_margin),
      sources_(std::move(sources)) {}

void StopPolicy::end_period() {
  longest_ = std::max(longest_, period_);
  period_ = 0;
}

int StopPolicy::wanted(bool times, double save_seconds) const {
  if (const int signal = sources_.signal(); signal != 0) return signal;
  if (!times) return 0;
  std::optional<double> left = sources_.scheduler_seconds();
  if (limit_) {
    const double own = *limit_ - sources_.now();
    left = std::min(left.value_or(own), own);
  }
  // Steps and saves are not always as quick as they were.
  const double needed = margin_ + 1.5 * (std::max(longest_, period_) + save_seconds);
  return left && *left < needed ? time_is_up : 0;
}

std::string StopPolicy::reason(int stop) const {
  if (stop == time_is_up) return "its time is up";
  const auto found = signals_.find(stop);
  return "signal " + (found == signals_.end() ? std::to_string(stop) : found->second);
}

}  // namespace trireme::train
