// Workers that call rank 0 repeatedly, and one that fails: rpc_program RANK FAULT SILENCE. After a
// while RANK does FAULT: idle (kills itself between calls), bulk (while it sends 8 MiB), reply
// (while it receives 8 MiB), kept (while its call is held), stop (stops itself), none. Rank 0
// reports lost ranks, keeps answering the others, and checks that each made all its calls. Every
// surviving rank prints "rank R: well" and exits with 0.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/comm/rpc.hpp"
#include "trireme/comm/session.hpp"

namespace {

namespace rpc = trireme::comm::rpc;
using trireme::comm::Session;

constexpr rpc::Method<std::int64_t, std::int64_t> work{"work"};
constexpr rpc::Method<std::int64_t, std::int64_t> keep{"keep"};
constexpr std::size_t large = 8 << 20;
constexpr int calls = 200;

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

struct Server {
  std::mutex mutex;
  std::map<int, std::int64_t> made;  // calls, by worker
  std::vector<rpc::Call<std::int64_t>> kept;
  int lost = 0;
  void serve(rpc::Endpoint& endpoint) {
    endpoint.serve(work, [this](rpc::Call<std::int64_t> call, std::int64_t number) {
      auto memory = std::make_shared<rpc::Bytes>(call.bulk_bytes());
      call.receive(*memory, [this, memory, number](rpc::Call<std::int64_t> call) {
        const std::lock_guard lock(mutex);
        ++made[call.caller()];
        memory->resize(call.capacity());
        call.reply(number + 1, *memory, [memory] {});
      });
    });
    endpoint.serve(keep, [this](rpc::Call<std::int64_t> call, std::int64_t) {
      const std::lock_guard lock(mutex);
      kept.push_back(std::move(call));
    });
  }
};

[[noreturn]] void die() {
  std::raise(SIGKILL);
  std::abort();
}

void misbehave(rpc::Endpoint& endpoint, const std::string& fault) {
  rpc::Bytes out(fault == "bulk" ? large : 0);
  rpc::Bytes in(fault == "reply" ? large : 0);
  if (fault == "stop") std::raise(SIGSTOP);
  if (fault == "kept") {
    const auto future = endpoint.call(keep, 0, 0);  // NOLINT: under way when it dies
    nap(0.2);
    die();
  }
  if (fault != "idle") {
    const auto future = endpoint.call(work, 0, 0, out, in);  // NOLINT: likewise
    nap(0.002);
    die();
  }
  die();
}

bool make_calls(rpc::Endpoint& endpoint, bool bad, const std::string& fault) {
  for (int i = 0; i < calls; ++i) {
    if (bad && i == calls / 4) misbehave(endpoint, fault);
    rpc::Bytes out(static_cast<std::size_t>(i * 1000));
    rpc::Bytes in(out.size() / 2);
    if (endpoint.call(work, 0, i, out, in).get() != i + 1) return false;
    nap(0.005);
  }
  return true;
}

bool serve_all(rpc::Endpoint& endpoint, Server& server, bool one_dies) {
  for (;;) {
    nap(0.05);
    const std::lock_guard lock(server.mutex);
    const auto done = std::count_if(server.made.begin(), server.made.end(),
                                    [](const auto& each) { return each.second == calls; });
    if (one_dies && server.lost != 1) continue;
    if (done == endpoint.size() - 1 - server.lost) return true;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Session session(&argc, &argv);
  if (argc != 4) return 2;
  const int bad = std::atoi(argv[1]);
  const std::string fault = argv[2];
  Server server;
  rpc::Options options;
  options.silence = std::atof(argv[3]);
  for (int rank = 0; rank < session.size(); ++rank) {
    if (rank == 0 || session.rank() == 0) options.peers.push_back(rank);
  }
  options.on_lost = [&](int peer, const std::string& why) {
    std::printf("rank %d lost rank %d: %s\n", session.rank(), peer, why.c_str());
    std::fflush(stdout);
    const std::lock_guard lock(server.mutex);
    ++server.lost;
  };
  rpc::Endpoint endpoint(session.world(), options);
  server.serve(endpoint);
  endpoint.start();
  const bool well = session.rank() == 0
                        ? serve_all(endpoint, server, fault != "none")
                        : make_calls(endpoint, session.rank() == bad && fault != "none", fault);
  // Rank 0 ends first, which fails the calls that it has kept.
  try {
    if (session.rank() != 0) endpoint.call(keep, 0, 0).get();
  } catch (const trireme::Error&) {
  }
  const bool in_order = endpoint.close(5);
  // A worker did not see the death, but MPI's world is broken all the same.
  if (fault != "none") session.abandon();
  if (fault == "none" && !in_order) return 5;
  std::printf("rank %d: %s\n", session.rank(), well ? "well" : "wrong");
  std::fflush(stdout);
  return well ? 0 : 3;
}
