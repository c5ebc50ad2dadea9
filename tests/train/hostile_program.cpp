// hostile_program BASE FOLDER TRIREME: creates a malicious corpus in FOLDER from the sound dataset
// BASE/data, run BASE/run and transformers model BASE/theirs, and runs TRIREME on each file. Each
// must be refused within seconds and bounded memory, by exit code 1 or 2 and one line that names
// the fault.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/hostile.hpp"
#include "train/hostile_hdf5.hpp"
#include "train/hostile_texts.hpp"

namespace trireme::hostile {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr double slower = 5;  // than without sanitizers, at most
#else
constexpr double slower = 1;
#endif
constexpr double most_seconds = 60 * slower;  // for a shared machine; typically 0.5 s
constexpr long most_kib = 700'000;            // 64 MiB of text, its copies, and MPI

struct Outcome {
  int status = 0;
  bool stopped = false;  // ran out of time
  double seconds = 0;
  long kib = 0;  // peak resident
  std::string errors;
};

Outcome run(const fs::path& trireme, const std::vector<std::string>& arguments,
            const fs::path& errors) {
  std::vector<char*> argv{const_cast<char*>(trireme.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    const int file = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, 0);
    ::dup2(nowhere, 1);
    ::dup2(file, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Outcome outcome;
  rusage usage{};
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (::wait4(child, &outcome.status, WNOHANG, &usage) == 0) {
    if (!outcome.stopped && elapsed() > most_seconds) {
      outcome.stopped = true;
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  outcome.seconds = elapsed();
  outcome.kib = usage.ru_maxrss;
  outcome.errors = read(errors);
  return outcome;
}

/// Why an outcome is wrong; "" if it is right.
std::string fault(const Outcome& outcome, const std::string& message) {
  if (outcome.stopped) return "does not end";
  if (WIFSIGNALED(outcome.status))
    return fmt::format("died of signal {}", WTERMSIG(outcome.status));
  const int code = WEXITSTATUS(outcome.status);
  if (code != 1 && code != 2) return fmt::format("exit code {}", code);
  if (outcome.kib > most_kib) return fmt::format("took {} KiB of memory", outcome.kib);
  const std::string mark = "trireme: error: ";
  const std::size_t at = outcome.errors.find(mark);
  if (at == std::string::npos) return "no error line";
  const std::string line = outcome.errors.substr(at, outcome.errors.find('\n', at) - at);
  if (outcome.errors.find("\n" + mark) != std::string::npos) return "several error lines";
  if (line.size() > 1000) return "an error line of " + std::to_string(line.size()) + " bytes";
  if (line.find(message) == std::string::npos) return "expected '" + message + "'";
  return "";
}

int check(const Corpus& corpus, const fs::path& folder, const fs::path& trireme) {
  constexpr int workers = 4;  // most of startup is waiting
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards what follows, and standard output
  int failures = 0;
  double slowest = 0;
  long largest = 0;
  const auto work = [&](int worker) {
    const fs::path errors = folder / fmt::format("errors-{}", worker);
    for (std::size_t i = next++; i < corpus.cases().size(); i = next++) {
      const Case& each = corpus.cases()[i];
      const Outcome outcome = run(trireme, each.arguments, errors);
      const std::string wrong = fault(outcome, each.message);
      const std::string said = outcome.errors.substr(0, 600);
      const std::lock_guard lock(mutex);
      slowest = std::max(slowest, outcome.seconds);
      largest = std::max(largest, outcome.kib);
      if (!wrong.empty()) ++failures;
      std::printf("%s%s: %s%s\n", wrong.empty() ? "" : "FAILED ", each.name.c_str(),
                  wrong.empty() ? "" : (wrong + ": ").c_str(), said.c_str());
    }
  };
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
  for (std::thread& thread : threads) thread.join();
  std::printf("%zu cases, %d failures; the slowest took %.1f s, the largest %ld KiB\n",
              corpus.cases().size(), failures, slowest, largest);
  return failures;
}

}  // namespace
}  // namespace trireme::hostile

int main(int argc, char** argv) {
  using namespace trireme::hostile;
  if (argc != 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Corpus corpus(argv[1], argv[2]);
  add_hdf5(corpus);
  add_texts(corpus);
  return check(corpus, argv[2], argv[3]) == 0 ? 0 : 1;
}
