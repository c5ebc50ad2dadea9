// Ranks that work in lockstep under a watchdog, until one fails: watchdog_program TIMEOUT RANK
// FAULT. After the third step RANK does FAULT: sleep (forever), kill or stop (itself), vanish
// (kills itself under Pause), pause (for two timeouts, all ranks, under Pause), throw (leaves by an
// exception), agree (all ranks leave by an exception and end in order), linger (is late at the
// end), apart (stops itself while the others continue), absent (sleeps while the others wait for it
// in an all-reduce through shared memory), none. Where ranks end independently: outlive (kills
// itself), outlive-sleep (sleeps forever), outlive-stop (stops itself under Pause), and the others
// continue for four timeouts; outlive-end (stops itself, and the others leave at once). Each rank
// prints its process number; the first prints "done" at the end.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/error.hpp"

namespace {

using trireme::comm::Session;
using trireme::comm::Watchdog;

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void misbehave(const std::string& fault) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::printf("fault at %.3f\n", std::chrono::duration<double>(now).count());
  std::fflush(stdout);
  if (fault == "sleep" || fault == "linger" || fault == "absent") nap(1e6);
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "stop" || fault == "apart") std::raise(SIGSTOP);
  if (fault == "throw") throw std::runtime_error("thrown on purpose");
}

void work(Session& session, double timeout, int rank, const std::string& fault) {
  trireme::device::MemoryLedger ledger;
  trireme::comm::Grid grid(session, {{1, 1, session.size(), 1}}, ledger);
  trireme::device::Stream stream;
  std::vector<float> gradients(1 << 20, 1.0F);
  Watchdog watchdog(session, timeout);
  for (int step = 0; step < 6; ++step) {
    watchdog.beat("forward of layer 7", step);
    if (step == 3 && fault == "suspend") std::raise(SIGSTOP);
    if (step == 3 && session.rank() == rank && fault != "linger") {
      watchdog.beat("the last thing that rank did");
      if (fault == "vanish") {
        const Watchdog::Pause unwatched(watchdog);
        misbehave("kill");
      }
      misbehave(fault);
    }
    while (step == 3 && fault == "apart") {
      watchdog.beat("work that needs nobody");
      nap(timeout / 10);
    }
    if (step == 3 && fault == "agree") throw trireme::AgreedError("thrown by all");
    nap(timeout / 10);
    if (step == 3 && fault == "pause") {
      const Watchdog::Pause outer(watchdog);
      const Watchdog::Pause inner(watchdog);
      nap(2 * timeout);
    }
    watchdog.beat("all-reduce of gradients");
    if (fault != "absent") MPI_Barrier(session.world());
    if (grid.backend(trireme::comm::GroupKind::data) != trireme::comm::Backend::shared) {
      throw trireme::Error("the ranks do not share memory");
    }
    grid.group(trireme::comm::Axis::data)
        .all_reduce(trireme::Tensor(gradients.data(), {1 << 20}), trireme::comm::Reduction::max,
                    stream)
        .wait();
  }
  if (fault == "linger" && session.rank() == rank) {
    watchdog.beat("the last thing that rank did");
    misbehave(fault);
  }
}

void outlive(Session& session, double timeout, int rank, const std::string& fault) {
  session.abandon();
  Watchdog watchdog(session, timeout, Watchdog::Ends::the_rank);
  watchdog.beat("the last thing that rank did", 3);
  if (session.rank() == rank) {
    if (fault == "outlive") misbehave("kill");
    if (fault == "outlive-sleep") misbehave("sleep");
    const Watchdog::Pause unwatched(watchdog);
    misbehave("stop");
  }
  for (int i = 0; i < 40 && fault != "outlive-end"; ++i) {
    watchdog.beat("work that needs nobody");
    nap(timeout / 10);
  }
  std::puts("outlived");
}

}  // namespace

int main(int argc, char** argv) {
  Session session(&argc, &argv);
  if (argc != 4) return 2;
  std::printf("process %d\n", static_cast<int>(::getpid()));
  std::fflush(stdout);
  try {
    const std::string fault = argv[3];
    (fault.starts_with("outlive") ? outlive : work)(session, std::atof(argv[1]), std::atoi(argv[2]),
                                                    fault);
  } catch (const trireme::AgreedError&) {
    return 4;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    session.abort(3);
  }
  if (session.rank() == 0) std::puts("done");
}
