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
      mail_(parent, options_.piece,
            {[this](int rank, const Bytes& message) { deliver(rank, message); },
             [this](int rank, const std::string& why) { lose_now(rank, why); }}) {
  constexpr int most_slots = 16'000;  // tags: the least that MPI_TAG_UB may be is 32767
  TRIREME_ASSERT(options_.outstanding >= 1 && options_.outstanding <= most_slots,
                 "{} outstanding calls", options_.outstanding);
  TRIREME_ASSERT(options_.piece >= 1 && options_.piece <= std::size_t{1} << 30, "pieces of {}",
                 options_.piece);
  peers_.resize(static_cast<std::size_t>(size()));
  for (Peer& each : peers_) {
    for (int slot = options_.outstanding - 1; slot >= 0; --slot) each.slots.push_back(slot);
  }
  for (Peer& each : peers_) each.left = !options_.peers.empty();
  for (const int rank : options_.peers) {
    require_peer(rank, "peer");
    peer(rank).left = false;
  }
  for (const int rank : options_.watched) {
    require_peer(rank, "watched");
    peer(rank).watched = rank != this->rank();
  }
  // Writing to a peer that died must be an error, not this process's end.
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

Service::~Service() { close(0); }

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
  thread_ = std::thread([this] { guarded_run(); });
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
  room_.notify_all();
  fail_calls(rank, why);
  mail_.give_up(rank);
  if (options_.on_lost) options_.on_lost(rank, why);
}

std::vector<int> Service::lost() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (peers_[static_cast<std::size_t>(rank)].lost) ranks.push_back(rank);
  }
  return ranks;
}

bool Service::reachable(int rank) const {
  require_peer(rank, "asked for");
  const std::lock_guard lock(mutex_);
  return !peers_[static_cast<std::size_t>(rank)].gone();
}

Sent Service::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

void Service::guarded_run() {
  try {
    run();
  } catch (const std::exception& error) {
    // MPI itself fails: no peer can be reached.
    for (int rank = 0; rank < size(); ++rank) lose_now(rank, error.what());
  }
  leave();
}

void Service::run() {
  int fruitless = 0;
  microseconds pause = shortest;
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
}

bool Service::turn() {
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    sent_ = mail_.sent();
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
  const bool due =
      options_.beat > 0 && seconds_between(last_heartbeat_, Clock::now()) >= options_.beat;
  if (due) last_heartbeat_ = Clock::now();
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = this->peer(rank);
    if (!peer.watched || peer.gone()) continue;
    if (due) send_heartbeat(rank);
    peer.silent += seconds;
    if (options_.silence > 0 && peer.silent > options_.silence) {
      lose_now(rank, fmt::format("silent for {:.1f} s", peer.silent));
    }
  }
}

void Service::send_heartbeat(int rank) {
  Peer& peer = this->peer(rank);
  if (peer.heartbeat_pending) return;  // the last one still waits: the peer may be dead
  peer.heartbeat_pending = true;
  mail_.send(rank, message_of({Kind::heartbeat}, {}, {}),
             [&peer](bool) { peer.heartbeat_pending = false; });
}

void Service::deliver_disconnect(int rank) {
  Peer& peer = this->peer(rank);
  // What it sent and nobody has asked for yet would keep it waiting.
  for (const auto& [number, weak] : std::exchange(peer.arrived, {})) {
    const auto call = weak.lock();
    if (call && !call->received.exchange(true)) {
      mail_.drain_bulk(rank, request_bulk_tag(call->slot), call->bulk, call->piece);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    peer.left = true;
  }
  room_.notify_all();
  mail_.send(rank, message_of({Kind::acknowledgement}, {}, {}));
  fail_calls(rank, "has left");
}

bool Service::close(double seconds) {
  TRIREME_ASSERT(std::this_thread::get_id() != thread_id_, "rpc: close in a handler");
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  room_.notify_all();
  if (thread_.joinable()) {
    const auto patience = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::max(seconds, 0.0)));
    post([this, deadline = Clock::now() + patience] { send_disconnect(deadline); });
    thread_.join();
  }
  return in_order_;
}

void Service::fail_kept_calls(int rank) {
  for (const auto& [number, weak] : std::map(peer(rank).arrived)) {
    if (const auto call = weak.lock()) fail_call(*call, "its endpoint was closed");
  }
}

void Service::send_disconnect(Clock::time_point deadline) {
  for (int rank = 0; rank < size(); ++rank) fail_kept_calls(rank);
  // Those failures are commands: they go before the disconnect.
  post([this, deadline] {
    leaving_ = true;
    deadline_ = deadline;
    for (int rank = 0; rank < size(); ++rank) {
      if (peer(rank).gone()) continue;
      peer(rank).disconnecting = true;
      mail_.send(rank, message_of({Kind::disconnect}, {}, {}));
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
  return mail_.idle() && std::all_of(peers_.begin(), peers_.end(),
                                     [](const Peer& peer) { return peer.lost || peer.quiet(); });
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
    sent_ = mail_.sent();
    commands.swap(commands_);
  }
  room_.notify_all();
  for (const auto& command : commands) command();
}

}  // namespace trireme::comm::rpc
