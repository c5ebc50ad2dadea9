#include "trireme/train/run_lock.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/comm/agree.hpp"
#include "trireme/core/config.hpp"
#include "trireme/core/machine.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t largest = 4096;  // bytes of the file

/// A file of /proc, without the newline; empty where there is none.
std::string system_text(const std::string& path) {
  std::string text(largest, '\0');
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t bytes = file.get() < 0 ? 0 : ::read(file.get(), text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

constexpr const char* unknown_machine = " ";  // where /proc has neither

/// The machine since its boot, and the space of process numbers in it.
std::string machine() {
  std::string space(64, '\0');
  const ssize_t bytes = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  space.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return boot_id() + " " + space;
}

/// When process `pid` of this machine began, in ticks since boot; empty if it is gone or a zombie.
/// Field 22 of proc(5)'s stat; the name before it may contain anything.
std::string birth_of(std::int64_t pid) {
  const std::string stat = system_text(fmt::format("/proc/{}/stat", pid));
  std::size_t at = stat.rfind(')');
  if (at == std::string::npos || stat.size() < at + 3 || stat[at + 2] == 'Z') return "";
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? "" : stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
}

/// Who owns a run folder.
struct Owner {
  std::string token, host, machine, birth, since, job;
  std::int64_t pid = 0;

  std::string text() const {
    return json{{"token", token}, {"host", host},   {"machine", machine}, {"pid", pid},
                {"birth", birth}, {"since", since}, {"job", job}}
        .dump();
  }
  std::string name() const {
    if (token.empty()) return "another process";
    const std::string slurm = job.empty() ? "" : fmt::format(" (Slurm job {})", job);
    return config::one_line(fmt::format("process {} on {}{} since {}", pid, host, slurm, since));
  }
  bool here(const Owner& reader) const {
    return machine == reader.machine && host == reader.host && machine != unknown_machine;
  }
};

Owner this_process() {
  Owner own;
  std::random_device random;
  own.token = fmt::format("{:08x}{:08x}", random(), random());
  own.host = host_name();
  own.machine = machine();
  own.pid = ::getpid();
  own.birth = birth_of(own.pid);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  own.since = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900,
                          utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
  const char* job = std::getenv("SLURM_JOB_ID");
  own.job = job == nullptr ? "" : std::string(job).substr(0, 64);
  return own;
}

/// The contents of a lock file. What is no owner (an owner that was writing it died) has no token.
struct Contents {
  bool empty = false;
  Owner owner;
  std::int64_t changed = 0;  // ns
  std::uint64_t links = 0;   // 0: its folder is being removed
};

Contents contents_of(const Descriptor& file) {
  Contents contents;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0) {
    contents.changed = status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
    contents.links = status.st_nlink;
  }
  std::string text(largest, '\0');
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  contents.empty = text.empty();
  const json parsed = json::parse(text, nullptr, false);
  const auto word = [&](const char* key) {
    const auto found = parsed.find(key);
    return found != parsed.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!parsed.is_object()) return contents;
  contents.owner = {.token = word("token"),
                    .host = word("host"),
                    .machine = word("machine"),
                    .birth = word("birth"),
                    .since = word("since"),
                    .job = word("job")};
  const auto pid = parsed.find("pid");
  if (pid != parsed.end() && pid->is_number_integer()) contents.owner.pid = pid->get<int>();
  return contents;
}

Descriptor open_lock(const fs::path& path, int flags = 0) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0666));
  if (file.get() < 0) throw_file_error(path, "open", errno);
  return file;
}

enum class Flock : std::uint8_t { taken, held, unsupported };

Flock try_flock(const Descriptor& file, const fs::path& path, int operation) {
  int result = 0;
  do result = ::flock(file.get(), operation | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return Flock::taken;
  if (errno == EWOULDBLOCK) return Flock::held;
  if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) {
    return Flock::unsupported;
  }
  throw_file_error(path, "lock", errno);
}

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

}  // namespace

LockOwner lock_owner(const fs::path& folder, LockTimes times) {
  const Descriptor file(
      ::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return {};
  const Contents now = contents_of(file);
  if (now.empty) return {};
  bool alive = false;
  if (now.owner.here(this_process())) {
    alive = !now.owner.birth.empty() && birth_of(now.owner.pid) == now.owner.birth;
  } else {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    alive = since_epoch - std::chrono::nanoseconds(now.changed) < 3 * times.heartbeat;
  }
  return {now.owner.name(), alive};
}

RunLock::RunLock(comm::Communicator& everyone, const fs::path& folder, int keeper, LockTimes times)
    : path_(folder / "lock"), times_(times) {
  const bool keeps = everyone.rank() == keeper;
  comm::agree(everyone, [&] {
    if (keeps) take();
  });
  std::vector<std::uint8_t> token(token_.begin(), token_.end());
  everyone.broadcast_bytes(token, keeper);
  token_.assign(token.begin(), token.end());
  comm::agree(everyone, [&] { share(); });
  if (keeps) heartbeat_ = std::thread([this] { keep_alive(); });
}

RunLock::~RunLock() {
  if (!heartbeat_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  heartbeat_.join();
  if (contents_of(file_).owner.token != token_) return;
  const fs::path folder = path_.parent_path();
  std::error_code error;
  int entries = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    ++entries;
  }
  // A run that failed before it wrote leaves no folder.
  if (made_folder_ && !error && entries == 1) {
    fs::remove(path_, error);
    fs::remove(folder, error);
  } else if (::ftruncate(file_.get(), 0) != 0) {
    std::fprintf(stderr, "trireme: %s: cannot be emptied; remove it\n", path_.c_str());
  }
}

void RunLock::take() {
  const Owner own = this_process();
  const auto begin = Clock::now();
  std::optional<Contents> first;  // of this owner
  auto seen = begin;
  for (bool noted = false;; pause()) {
    std::error_code error;
    made_folder_ = fs::create_directories(path_.parent_path(), error) || made_folder_;
    if (error) throw_file_error(path_.parent_path(), "create", error.value());
    file_ = open_lock(path_, O_CREAT);
    const Flock flock = try_flock(file_, path_, LOCK_EX);
    const Contents now = contents_of(file_);
    if (!first || first->owner.token != now.owner.token) {
      first = now;
      seen = Clock::now();
    }
    const auto waited = Clock::now() - begin;
    const bool foreign = !now.empty && !now.owner.here(own);
    bool gone = now.empty;
    if (foreign) {
      gone = first->changed == now.changed && Clock::now() - seen > 3 * times_.heartbeat;
    } else if (!now.empty) {
      gone = birth_of(now.owner.pid) != now.owner.birth || now.owner.birth.empty();
    }
    if (gone && flock != Flock::held && now.links > 0) break;
    const bool alive = foreign && first->changed != now.changed;
    if (alive || waited > (foreign ? 4 * times_.heartbeat : times_.patience)) {
      throw Error(
          "train.output = {}: {} has this run folder; wait until it ends, or name another "
          "train.output",
          path_.parent_path().string(), now.owner.name());
    }
    if (!noted && waited > std::chrono::seconds(1)) {
      noted = true;
      std::fprintf(stderr, "trireme: %s: waiting for the end of %s\n", path_.c_str(),
                   now.owner.name().c_str());
    }
  }
  if (::ftruncate(file_.get(), 0) != 0) throw_file_error(path_, "write", errno);
  write_all(file_, path_, own.text());
  token_ = own.token;
  if (try_flock(file_, path_, LOCK_SH) == Flock::unsupported) {
    // Two may have come to this point: the last to write owns the folder.
    std::this_thread::sleep_for(times_.heartbeat / 5);
  }
  require_owned();
}

void RunLock::share() {
  if (file_.get() < 0) {
    file_ = open_lock(path_);
    try_flock(file_, path_, LOCK_SH);
  }
  require_owned();
}

void RunLock::require_owned() const {
  const Owner owner = contents_of(open_lock(path_)).owner;
  if (owner.token == token_) return;
  throw Error("train.output = {}: {} has taken over this run folder; end one of the two runs",
              path_.parent_path().string(), owner.name());
}

void RunLock::keep_alive() {
  std::unique_lock guard(mutex_);
  while (!ends_.wait_for(guard, times_.heartbeat, [&] { return ended_; })) {
    ::futimens(file_.get(), nullptr);  // a file system that fails shows in the next save
  }
}

}  // namespace trireme::train
