#include "trireme/comm/watchdog.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <sstream>

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;  // one clock for all processes of a node
constexpr std::size_t words = Watchdog::text_bytes / sizeof(std::uint64_t);

std::int64_t nanoseconds() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

/// Differs between processes that number their processes differently (containers).
std::uint64_t process_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

struct ProcessState {
  std::string text;        // "dead" or "stopped"; empty where it runs or nothing is known
  std::int64_t began = 0;  // clock ticks since the machine's start; 0: not known
};

/// Of a process of this namespace, by Linux' /proc.
ProcessState state_of(std::int64_t process) {
  if (!std::ifstream("/proc/self/stat")) return {};
  ProcessState state;
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!file || !std::getline(file, line)) return {"dead", 0};
  // "pid (name) S …"; the name may hold anything.
  const std::size_t at = line.rfind(") ");
  if (at == std::string::npos || at + 2 >= line.size()) return {};
  const char letter = line[at + 2];
  if (letter == 'T' || letter == 't') state.text = "stopped";
  if (letter == 'Z' || letter == 'X') state.text = "dead";
  std::istringstream fields(line.substr(at + 4));  // from the fourth on
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> state.began;
  return state;
}

void print_error(const std::string& text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

/// One rank's note in shared memory, written by its owner alone. The sequence is odd while a note
/// is being written; every 64-bit word is atomic.
struct Watchdog::Slot {
  std::atomic<std::uint64_t> sequence{0};
  std::atomic<std::int64_t> rank{0}, step{-1}, beaten{0}, process{0};
  std::atomic<std::int64_t> began{0};  // its process
  std::atomic<std::uint64_t> process_namespace{0};
  std::atomic<std::int64_t> pauses{0};  // watched while 0
  std::atomic<bool> ended{false};       // its process may go
  std::atomic<bool> given_up{false};    // somebody ends it
  std::array<std::atomic<std::uint64_t>, words> text{};
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// "dead" or "stopped"; empty where it runs, and where that cannot be known.
  std::string state() const {
    if (process_namespace != trireme::comm::process_namespace()) return {};
    const ProcessState found = state_of(process);
    // Its number may be another process's by now.
    return found.began != 0 && found.began != began ? "dead" : found.text;
  }

  template <class Change>
  void write(const Change& change) {
    const std::uint64_t before = sequence.load(std::memory_order_relaxed);
    sequence.store(before + 1, std::memory_order_relaxed);
    change();  // by release stores: who sees one of them sees the odd sequence too
    beaten.store(nanoseconds(), std::memory_order_release);
    sequence.store(before + 2, std::memory_order_release);
  }

  void note(std::string_view operation) {
    std::array<std::uint64_t, words> copy{};
    std::memcpy(copy.data(), operation.data(), std::min(operation.size(), text_bytes));
    for (std::size_t i = 0; i < words; ++i) text[i].store(copy[i], std::memory_order_release);
  }

  LastOperation read() const {
    LastOperation result;
    std::array<std::uint64_t, words> copy{};
    // A rank that died while writing leaves its sequence odd for ever: then what is there must do.
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const std::uint64_t before = sequence.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < words; ++i) copy[i] = text[i].load(std::memory_order_acquire);
      result.step = step.load(std::memory_order_acquire);
      result.seconds_ago =
          1e-9 * static_cast<double>(nanoseconds() - beaten.load(std::memory_order_acquire));
      if (before % 2 == 0 && sequence.load(std::memory_order_relaxed) == before) break;
    }
    result.rank = static_cast<int>(rank.load(std::memory_order_relaxed));
    std::array<char, text_bytes + 1> characters{};
    std::memcpy(characters.data(), copy.data(), text_bytes);
    result.operation = characters.data();
    return result;
  }
};

Watchdog::Watchdog(Session& session, double timeout_seconds, Ends ends)
    : session_(session), timeout_(timeout_seconds), ends_(ends) {
  if (!(timeout_ > 0)) return;
  void* base = nullptr;
  mpi_check(
      MPI_Win_allocate_shared(sizeof(Slot), 1, MPI_INFO_NULL, session_.node(), &base, &window_),
      "MPI_Win_allocate_shared");
  TRIREME_ASSERT(reinterpret_cast<std::uintptr_t>(base) % alignof(Slot) == 0, "shared memory at {}",
                 base);
  own_ = new (base) Slot;
  own_->rank = session_.rank();
  own_->process = ::getpid();
  own_->began = state_of(::getpid()).began;
  own_->process_namespace = process_namespace();
  beat("start");
  mpi_check(MPI_Barrier(session_.node()), "MPI_Barrier");
  for (int rank = 0; rank < session_.node_size(); ++rank) {
    MPI_Aint bytes = 0;
    int unit = 0;
    mpi_check(MPI_Win_shared_query(window_, rank, &bytes, &unit, &base), "MPI_Win_shared_query");
    slots_.push_back(static_cast<Slot*>(base));
  }
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (own_ == nullptr) return;
  const bool in_order = std::uncaught_exceptions() == 0;
  const bool together = in_order && ends_ == Ends::the_job;
  if (together) {
    // A rank that waits here for one that has stalled is still watched.
    beat("waiting for all ranks to end");
    MPI_Barrier(session_.world());
  }
  own_->ended = true;
  // Who leaves last ends one that has stalled, or the launcher would wait for it.
  while (in_order && !together && others_live()) ::usleep(10'000);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  condition_.notify_one();
  thread_.join();
  if (together) MPI_Win_free(&window_);
}

void Watchdog::beat(std::string_view operation) {
  if (own_ == nullptr) return;
  own_->write([&] { own_->note(operation); });
}

void Watchdog::beat(std::string_view operation, std::int64_t step) {
  if (own_ == nullptr) return;
  own_->write([&] {
    own_->note(operation);
    own_->step.store(step, std::memory_order_release);
  });
}

void Watchdog::pause() {
  if (own_ != nullptr) ++own_->pauses;
}

void Watchdog::resume() {
  if (own_ == nullptr) return;
  own_->write([] {});
  --own_->pauses;
}

bool Watchdog::watched(const Slot& slot) const {
  if (slot.ended || (slot.given_up && &slot != own_)) return false;
  const bool alone = ends_ == Ends::the_rank;
  if (!alone && slot.pauses == 0) return true;  // its silence is enough
  const std::string state = slot.state();
  // A rank that died is silent in a pause too; where ranks end alone it is left to others.
  return alone ? state == "stopped" || (slot.pauses == 0 && state != "dead") : state == "dead";
}

bool Watchdog::others_live() const {
  const std::uint64_t ours = process_namespace();
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot* slot) {
    const bool over = slot == own_ || slot->ended || slot->given_up;
    // Of those that count processes otherwise nothing would be known.
    return !over && slot->process_namespace == ours && slot->state() != "dead";
  });
}

void Watchdog::watch() {
  const auto period = std::chrono::duration<double>(std::clamp(timeout_ / 20, 0.005, 0.5));
  struct Seen {
    std::uint64_t sequence = 0;
    double silence = 0;  // seconds that this thread was awake and the sequence stood still
  };
  std::vector<Seen> seen(slots_.size());
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!condition_.wait_for(lock, period, [this] { return stop_; })) {
    const Clock::time_point now = Clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last, now);
    const double awake = std::min(passed, 4 * period).count();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const std::uint64_t sequence = slots_[i]->sequence.load(std::memory_order_acquire);
      const bool moved = std::exchange(seen[i].sequence, sequence) != sequence;
      seen[i].silence = moved || !watched(*slots_[i]) ? 0 : seen[i].silence + awake;
      if (seen[i].silence < timeout_) continue;
      if (ends_ == Ends::the_job) {
        lock.unlock();
        end_job(i, seen[i].silence);
      }
      end_rank(i, seen[i].silence);
    }
  }
}

std::string Watchdog::complaint(std::size_t silent, double seconds) const {
  std::vector<LastOperation> ranks;
  for (const Slot* slot : slots_) {
    ranks.push_back(slot->read());
    std::string& state = ranks.back().state;
    state = slot->state();
    if (slot->pauses > 0 || slot->ended) state += state.empty() ? "not watched" : ", not watched";
  }
  const bool job = ends_ == Ends::the_job;
  // Ranks that wait for a stopped one are silent too, and often for longer.
  for (std::size_t i = 0; job && i < ranks.size(); ++i) {
    if (ranks[i].state != "stopped" || ranks[silent].state == "stopped") continue;
    silent = i;
    seconds = ranks[i].seconds_ago;
  }
  return fmt::format(
      "trireme: {}: watchdog: rank {} has not moved for {:.1f} s: the limit is {} s, so {} ends; "
      "the ranks of its node, longest silence first:\n{}",
      job ? "error" : "warning", static_cast<int>(slots_[silent]->rank), seconds, timeout_,
      job ? "the job" : "that rank", watchdog_table(ranks));
}

void Watchdog::end_job(std::size_t silent, double seconds) {
  if (session_.claim_reporting()) {
    print_error(complaint(silent, seconds));
    // Time for the launcher to pass the text on; and other nodes notice at the same time, of which
    // one may have the culprit.
    ::usleep(300'000);
  } else {
    // Another rank of this node is about to print and abort; ending first would cut it off.
    ::sleep(1);
  }
  session_.abort(1, 1);
}

void Watchdog::end_rank(std::size_t silent, double seconds) {
  Slot& slot = *slots_[silent];
  const bool own = &slot == own_;
  if (slot.given_up.exchange(true)) {
    if (!own) return;
    ::usleep(100'000);  // another rank is about to print what this one did last
  } else {
    print_error(complaint(silent, seconds));
  }
  // One that counts processes otherwise ends itself, unless it is stopped: then it stays so.
  const bool near = slot.process_namespace == process_namespace();
  if (own || (near && slot.state() != "dead")) {
    ::kill(static_cast<::pid_t>(slot.process), SIGKILL);
  }
}

std::string watchdog_table(std::vector<LastOperation> ranks) {
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.seconds_ago > b.seconds_ago; });
  std::string text =
      fmt::format("{:>8} {:>8} {:>12}  {}\n", "rank", "step", "seconds ago", "last operation");
  for (const LastOperation& each : ranks) {
    text += fmt::format("{:>8} {:>8} {:>12.1f}  {}{}\n", each.rank,
                        each.step < 0 ? "-" : std::to_string(each.step), each.seconds_ago,
                        each.operation, each.state.empty() ? "" : " (" + each.state + ")");
  }
  return text;
}

}  // namespace trireme::comm
