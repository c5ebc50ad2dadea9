// Ranks that work in step under a watchdog, until one of them does what it is told:
//   watchdog_program TIMEOUT RANK DEED
// After the third step RANK does DEED: sleep (for ever), kill or stop (itself), vanish (kills
// itself under Pause), pause (for two timeouts, all ranks, under Pause), throw (leaves by an
// exception), agree (all ranks leave by an exception and end in order), linger (is late at the
// end), apart (stops itself while the others go on without it), absent (sleeps while the others
// wait for it in an all-reduce through shared memory), none; and where ranks end alone: outlive
// (kills itself), outlive-sleep (sleeps for ever), outlive-stop (stops itself under Pause), and the
// others go on for four timeouts; outlive-end (stops itself, and the others leave at once). Each
// rank prints its process number, and the first "done" when all is over.
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

void misbehave(const std::string& deed) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::printf("deed at %.3f\n", std::chrono::duration<double>(now).count());
  std::fflush(stdout);
  if (deed == "sleep" || deed == "linger" || deed == "absent") nap(1e6);
  if (deed == "kill") std::raise(SIGKILL);
  if (deed == "stop" || deed == "apart") std::raise(SIGSTOP);
  if (deed == "throw") throw std::runtime_error("thrown on purpose");
}

void work(Session& session, double timeout, int rank, const std::string& deed) {
  trireme::device::MemoryLedger ledger;
  trireme::comm::Grid grid(session, {{1, 1, session.size(), 1}}, ledger);
  trireme::device::Stream stream;
  std::vector<float> gradients(1 << 20, 1.0F);
  Watchdog watchdog(session, timeout);
  for (int step = 0; step < 6; ++step) {
    watchdog.beat("forward of layer 7", step);
    if (step == 3 && session.rank() == rank && deed != "linger") {
      watchdog.beat("the last thing that rank did");
      if (deed == "vanish") {
        const Watchdog::Pause unwatched(watchdog);
        misbehave("kill");
      }
      misbehave(deed);
    }
    while (step == 3 && deed == "apart") {
      watchdog.beat("work that needs nobody");
      nap(timeout / 10);
    }
    if (step == 3 && deed == "agree") throw trireme::AgreedError("thrown by all");
    nap(timeout / 10);
    if (step == 3 && deed == "pause") {
      const Watchdog::Pause outer(watchdog);
      const Watchdog::Pause inner(watchdog);
      nap(2 * timeout);
    }
    watchdog.beat("all-reduce of gradients");
    if (deed != "absent") MPI_Barrier(session.world());
    if (grid.backend(trireme::comm::GroupKind::data) != trireme::comm::Backend::shared) {
      throw trireme::Error("the ranks do not share memory");
    }
    grid.group(trireme::comm::Axis::data)
        .all_reduce(trireme::Tensor(gradients.data(), {1 << 20}), trireme::comm::Reduction::max,
                    stream)
        .wait();
  }
  if (deed == "linger" && session.rank() == rank) {
    watchdog.beat("the last thing that rank did");
    misbehave(deed);
  }
}

void outlive(Session& session, double timeout, int rank, const std::string& deed) {
  session.abandon();
  Watchdog watchdog(session, timeout, Watchdog::Ends::the_rank);
  watchdog.beat("the last thing that rank did", 3);
  if (session.rank() == rank) {
    if (deed == "outlive") misbehave("kill");
    if (deed == "outlive-sleep") misbehave("sleep");
    const Watchdog::Pause unwatched(watchdog);
    misbehave("stop");
  }
  for (int i = 0; i < 40 && deed != "outlive-end"; ++i) {
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
    const std::string deed = argv[3];
    (deed.starts_with("outlive") ? outlive : work)(session, std::atof(argv[1]), std::atoi(argv[2]),
                                                   deed);
  } catch (const trireme::AgreedError&) {
    return 4;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    session.abort(3);
  }
  if (session.rank() == 0) std::puts("done");
}
