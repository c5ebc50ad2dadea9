#include "rpc_service.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "trireme/comm/session.hpp"

namespace trireme::comm::rpc {
namespace {
using std::chrono::microseconds;
constexpr int yields = 20;  // fruitless looks before the thread sleeps
constexpr microseconds shortest{20};
constexpr microseconds longest_idle{1000};
constexpr microseconds longest_busy{100};  // while messages are under way, which need looks to move
// A look that comes later than that was late because this process could not run.
constexpr double longest_turn = 0.1;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Service::Service(MPI_Comm parent, Options options)
    : options_(std::move(options)),
      mail_(
          parent, [this](int rank, const Bytes& message) { deliver(rank, message); },
          [this](int rank, const std::string& why) { lose_now(rank, why); }) {
  peers_.resize(static_cast<std::size_t>(size()));
  for (Peer& each : peers_) each.left = !options_.peers.empty();
  for (const int rank : options_.peers) {
    require_peer(rank, "peer");
    peer(rank).left = false;
  }
  // Writing to a peer that died must be an error, not this process's end.
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

void Service::require_peer(int rank, const char* what) const {
  TRIREME_ASSERT(rank >= 0 && rank < size(), "rpc: {} rank {} of {}", what, rank, size());
}

void Service::serve(const std::string& name, Handler handler) {
  TRIREME_ASSERT(!started_, "rpc: {} comes after start()", name);
  const bool is_new = handlers_.emplace(name, std::move(handler)).second;
  TRIREME_ASSERT(is_new, "rpc: {} is served twice", name);
}

void Service::start() {
  TRIREME_ASSERT(!started_, "rpc: a second start()");
  mpi_check(MPI_Barrier(mail_.comm()), "MPI_Barrier");
  const std::lock_guard lock(mutex_);
  started_ = true;
  last_heartbeat_ = last_turn_ = Clock::now();
  thread_ = std::thread([this] { run(); });
  thread_id_ = thread_.get_id();
}

bool Service::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    if (over_ || !started_) return false;
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
  return true;
}

void Service::lose(int rank, const std::string& why) {
  require_peer(rank, "lost");
  post([this, rank, why] { lose_now(rank, why); });
}

void Service::lose_now(int rank, const std::string& why) {
  Peer& peer = this->peer(rank);
  if (peer.lost) return;
  {
    const std::lock_guard lock(mutex_);
    peer.lost = true;
  }
  fail_calls(rank, why);
  mail_.give_up(rank);
  if (options_.on_lost) options_.on_lost(rank, why);
}

void Service::run() {
  int fruitless = 0;
  microseconds pause = shortest;
  try {
    while (!leaving_ || !may_leave()) {
      if (turn()) {
        fruitless = 0;
        pause = shortest;
        continue;
      }
      if (++fruitless <= yields) {
        std::this_thread::yield();
        continue;
      }
      std::unique_lock lock(mutex_);
      const microseconds longest = mail_.idle() ? longest_idle : longest_busy;
      wake_.wait_for(lock, std::min(pause, longest), [this] { return !commands_.empty(); });
      pause = std::min(2 * pause, longest_idle);
    }
  } catch (const std::exception& error) {
    // MPI itself fails: no peer can be reached.
    for (int rank = 0; rank < size(); ++rank) lose_now(rank, error.what());
  }
  leave();
}

bool Service::turn() {
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) {
    command();
    command = nullptr;  // what it held may be answered by its end
  }
  const bool moved = mail_.poll();
  const auto now = Clock::now();
  watch_peers(std::min(seconds_between(last_turn_, now), longest_turn));
  last_turn_ = now;
  return moved || !commands.empty();
}

void Service::watch_peers(double seconds) {
  if (options_.silence <= 0) return;
  const bool due = seconds_between(last_heartbeat_, Clock::now()) >= options_.silence / 5;
  if (due) last_heartbeat_ = Clock::now();
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = this->peer(rank);
    if (rank == mail_.rank() || peer.gone()) continue;
    // One that still waits is not followed by another: the peer may be dead.
    if (due && !std::exchange(peer.heartbeat_pending, true)) {
      send(rank, Kind::heartbeat, [&peer](bool) { peer.heartbeat_pending = false; });
    }
    peer.silent += seconds;
    if (peer.silent > options_.silence) {
      lose_now(rank, fmt::format("silent for {:.1f} s", peer.silent));
    }
  }
}

void Service::send(int rank, Kind kind, Mail::Done done) {
  mail_.send(rank, encode(Heading{.kind = kind}), std::move(done));
}

void Service::deliver_disconnect(int rank) {
  Peer& peer = this->peer(rank);
  // What it sent and nobody has asked for yet would keep it waiting.
  for (const auto& [number, weak] : std::exchange(peer.arrived, {})) {
    const auto call = weak.lock();
    if (call && !call->received.exchange(true)) {
      mail_.drain_bulk(rank, request_bulk_tag(call->slot), call->bulk);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    peer.left = true;
  }
  peer.unconfirmed = true;
  send(rank, Kind::acknowledgement);
  fail_calls(rank, "has left");
}

/// The peer waits for the confirmation: if it ended first, without MPI_Finalize, the connection
/// might close before its acknowledgement is read. No message to it follows: it might reach a
/// communicator that is freed. So answers to its last requests, which are commands, go first.
void Service::deliver_acknowledgement(int rank) {
  fail_calls(rank, "the endpoint was closed before the reply");
  peer(rank).acknowledged = true;
  post([this, rank] { send(rank, Kind::confirmation); });
  const std::lock_guard lock(mutex_);
  peer(rank).left = true;
}

bool Service::close(double seconds) {
  TRIREME_ASSERT(std::this_thread::get_id() != thread_id_, "rpc: close in a handler");
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) {
    const auto patience = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::max(seconds, 0.0)));
    post([this, deadline = Clock::now() + patience] { send_disconnect(deadline); });
    thread_.join();
  }
  return in_order_;
}

void Service::send_disconnect(Clock::time_point deadline) {
  for (const Peer& each : peers_) {
    for (const auto& [number, weak] : std::map(each.arrived)) {
      if (const auto call = weak.lock()) call->fail("its endpoint was closed");
    }
  }
  // Those failures are commands: they go before the disconnect.
  post([this, deadline] {
    leaving_ = true;
    deadline_ = deadline;
    for (int rank = 0; rank < size(); ++rank) {
      if (peer(rank).gone()) continue;
      peer(rank).disconnecting = true;
      send(rank, Kind::disconnect);
    }
  });
}

bool Service::may_leave() {
  if (Clock::now() >= deadline_) return true;
  {
    // An answer among them may have to drain what its caller is sending.
    const std::lock_guard lock(mutex_);
    if (!commands_.empty()) return false;
  }
  return mail_.idle() && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
           return peer.lost || (peer.quiet() && !peer.unconfirmed);
         });
}

void Service::leave() {
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = this->peer(rank);
    if (!peer.lost && !(peer.quiet() && mail_.idle(rank))) {
      lose_now(rank, "did not confirm the end");
    }
    if (peer.lost) in_order_ = false;
    const std::lock_guard lock(mutex_);
    peer.left = true;
  }
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    over_ = closing_ = true;
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
}

}  // namespace trireme::comm::rpc
