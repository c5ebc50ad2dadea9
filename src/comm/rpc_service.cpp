#include "rpc_service.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
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

constexpr int request_bulk_tag(int slot) { return Mail::first_bulk_tag + 2 * slot; }
constexpr int reply_bulk_tag(int slot) { return Mail::first_bulk_tag + 2 * slot + 1; }

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
}  // namespace

Bytes message_of(const Heading& heading, std::string_view name, std::span<const std::byte> value) {
  Bytes message(sizeof(Heading) + name.size() + value.size());
  std::memcpy(message.data(), &heading, sizeof(Heading));
  if (!name.empty()) std::memcpy(message.data() + sizeof(Heading), name.data(), name.size());
  if (!value.empty()) {
    std::memcpy(message.data() + sizeof(Heading) + name.size(), value.data(), value.size());
  }
  return message;
}

Bytes bytes_of(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

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

void Service::serve(const std::string& name, detail::Handler handler) {
  TRIREME_ASSERT(!started_, "rpc: {} comes after start()", name);
  const bool is_new = handlers_.emplace(name, std::move(handler)).second;
  TRIREME_ASSERT(is_new, "rpc: {} is served twice", name);
}

void Service::start() {
  TRIREME_ASSERT(!started_, "rpc: a second start()");
  mpi_check(MPI_Barrier(mail_.comm()), "MPI_Barrier");
  const std::lock_guard lock(mutex_);
  started_ = true;
  last_beat_ = last_turn_ = Clock::now();
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

std::shared_ptr<Outgoing> Service::call(const char* name, int rank, Bytes request,
                                        std::span<const std::byte> bulk,
                                        std::span<std::byte> room) {
  require_peer(rank, name);
  TRIREME_ASSERT(started_, "rpc: {} is called before start()", name);
  if (request.size() > options_.largest_message) {
    throw Error("rpc: a request of {} bytes for {}: requests have at most {}; send it as bulk",
                request.size(), name, options_.largest_message);
  }
  auto call = std::make_shared<Outgoing>();
  call->name = name;
  call->peer = rank;
  call->bulk = bulk;
  call->room = room;
  call->service_thread = thread_id_;
  {
    std::unique_lock lock(mutex_);
    const auto may_go = [&] { return closing_ || peer(rank).gone() || !peer(rank).slots.empty(); };
    if (!may_go() && std::this_thread::get_id() == thread_id_) {
      throw Error("rpc: {} calls to rank {} are outstanding, and a handler may not wait for one",
                  options_.outstanding, rank);
    }
    room_.wait(lock, may_go);
    if (closing_) throw Error("rpc: {} is called after the endpoint was closed", name);
    if (!peer(rank).gone()) {
      call->slot = peer(rank).slots.back();
      peer(rank).slots.pop_back();
    }
    call->number = ++calls_;
  }
  const Heading heading{Kind::request, call->slot,     call->number,     bulk.size(),
                        room.size(),   options_.piece, call->name.size()};
  Bytes message = message_of(heading, call->name, request);
  if (!post([this, call, message = std::move(message)]() mutable {
        begin(call, std::move(message));
      })) {
    throw Error("rpc: {} is called after the endpoint was closed", name);
  }
  return call;
}

void Service::begin(const std::shared_ptr<Outgoing>& call, Bytes message) {
  Peer& peer = this->peer(call->peer);
  peer.calls.emplace(call->number, call);
  if (peer.gone() || leaving_) {
    call->sent = true;
    const char* why = peer.lost ? "is lost" : "has left";
    if (peer.gone()) fail_calls<PeerLost>(call->peer, why);
    if (!peer.gone()) fail_calls<Error>(call->peer, "the endpoint was closed before the call");
    return;
  }
  mail_.send(call->peer, std::move(message));
  call->sent = call->bulk.empty();
  if (!call->sent) {
    mail_.send_bulk(call->peer, request_bulk_tag(call->slot), call->bulk, [this, call](bool) {
      call->sent = true;
      end_if_complete(call);
    });
  }
}

void Service::end_if_complete(const std::shared_ptr<Outgoing>& call) {
  if (!call->sent || !call->answered || !call->received) return;
  peer(call->peer).calls.erase(call->number);
  {
    const std::lock_guard lock(mutex_);
    if (call->slot >= 0) peer(call->peer).slots.push_back(call->slot);
    call->slot = -1;
  }
  room_.notify_all();
  {
    const std::lock_guard lock(call->mutex);
    call->over = true;
  }
  call->ended.notify_all();
}

template <class Failure>
void Service::fail_calls(int rank, const std::string& why) {
  const auto calls = peer(rank).calls;  // those that end leave the map
  for (const auto& [number, call] : calls) {
    if (!call->answered) {
      const std::string line = fmt::format("rank {}, {}: {}", rank, call->name, why);
      const std::lock_guard lock(call->mutex);
      call->error = std::make_exception_ptr(Failure(line));
      call->answered = call->received = true;
    }
    end_if_complete(call);
  }
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
  fail_calls<PeerLost>(rank, why);
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
  tend(std::min(seconds_between(last_turn_, now), longest_turn));
  last_turn_ = now;
  return moved || !commands.empty();
}

void Service::tend(double seconds) {
  const bool time_to_beat =
      options_.beat > 0 && seconds_between(last_beat_, Clock::now()) >= options_.beat;
  if (time_to_beat) last_beat_ = Clock::now();
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = this->peer(rank);
    if (!peer.watched || peer.gone()) continue;
    if (time_to_beat) beat(rank);
    peer.silent += seconds;
    if (options_.silence > 0 && peer.silent > options_.silence) {
      lose_now(rank, fmt::format("silent for {:.1f} s", peer.silent));
    }
  }
}

void Service::beat(int rank) {
  Peer& peer = this->peer(rank);
  if (peer.beating) return;  // the last one still waits: the peer may be dead
  peer.beating = true;
  mail_.send(rank, message_of({Kind::beat}, {}, {}), [&peer](bool) { peer.beating = false; });
}

void Service::deliver(int rank, const Bytes& message) {
  Heading heading;
  TRIREME_ASSERT(message.size() >= sizeof(heading), "rpc: {} bytes from rank {}", message.size(),
                 rank);
  std::memcpy(&heading, message.data(), sizeof(heading));
  peer(rank).silent = 0;
  const auto rest = std::span(message).subspan(sizeof(heading));
  TRIREME_ASSERT(heading.name <= rest.size(), "rpc: a name of {} bytes", heading.name);
  const std::string_view name(reinterpret_cast<const char*>(rest.data()), heading.name);
  const auto value = rest.subspan(heading.name);
  switch (heading.kind) {
    case Kind::request:
      return deliver_request(rank, heading, name, value);
    case Kind::reply:
    case Kind::failure:
      return deliver_answer(rank, heading, value);
    case Kind::beat:
      return;
    case Kind::goodbye:
      return deliver_goodbye(rank);
    case Kind::acknowledgement:
      peer(rank).acknowledged = true;
      fail_calls<Error>(rank, "the endpoint was closed before the reply");
      return;
  }
}

void Service::deliver_request(int rank, const Heading& heading, std::string_view name,
                              std::span<const std::byte> value) {
  auto call = std::make_shared<Arrived>();
  call->service = weak_from_this();
  call->name = name;
  call->caller = rank;
  call->slot = heading.slot;
  call->number = heading.call;
  call->piece = heading.piece;
  call->bulk = heading.bulk;
  call->room = heading.room;
  call->largest = options_.largest_message;
  call->received = heading.bulk == 0;
  peer(rank).arrived.emplace(call->number, call);
  const auto handler = handlers_.find(name);
  try {
    if (leaving_) throw Error("rank {} has left", this->rank());
    if (handler == handlers_.end()) {
      throw Error("rank {} serves no method of this name", this->rank());
    }
    handler->second(call, value);
  } catch (const std::exception& error) {
    detail::fail(call, error.what());
  }
}

void Service::deliver_answer(int rank, const Heading& heading, std::span<const std::byte> value) {
  const auto found = peer(rank).calls.find(heading.call);
  if (found == peer(rank).calls.end() || found->second->answered) {
    if (heading.bulk > 0) {
      mail_.drain_bulk(rank, reply_bulk_tag(heading.slot), heading.bulk, heading.piece);
    }
    return;
  }
  const auto call = found->second;
  {
    const std::lock_guard lock(call->mutex);
    if (heading.kind == Kind::failure) {
      call->error = std::make_exception_ptr(
          RemoteError("rank {}, {}: {}", rank, call->name,
                      std::string_view(reinterpret_cast<const char*>(value.data()), value.size())));
    }
    call->reply.assign(value.begin(), value.end());
    call->reply_bulk = heading.bulk;
  }
  call->answered = true;
  call->received = heading.bulk == 0;
  if (call->received) return end_if_complete(call);
  const auto ended = [this, call, rank](bool finished) {
    call->received = true;
    if (!finished) {
      const std::lock_guard lock(call->mutex);
      call->error = std::make_exception_ptr(
          PeerLost("rank {}, {}: lost while its reply arrived", rank, call->name));
    }
    end_if_complete(call);
  };
  mail_.receive_bulk(rank, reply_bulk_tag(call->slot), call->room.first(heading.bulk),
                     heading.piece, ended);
}

void Service::deliver_goodbye(int rank) {
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
  fail_calls<PeerLost>(rank, "has left");
}

void Service::receive(std::shared_ptr<Arrived> call, std::span<std::byte> memory,
                      std::function<void(std::shared_ptr<Arrived>)> then) {
  if (memory.size() != call->bulk) {
    throw Error("{} bytes of bulk for memory of {}", call->bulk, memory.size());
  }
  if (call->received.exchange(true) && call->bulk > 0) {
    throw Error("the bulk was received before, or its caller has left");
  }
  const auto finish = [](const std::shared_ptr<Arrived>& call,
                         const std::function<void(std::shared_ptr<Arrived>)>& then) {
    try {
      then(call);
    } catch (const std::exception& error) {
      detail::fail(call, error.what());
    }
  };
  post([this, call = std::move(call), memory, then = std::move(then), finish] {
    if (peer(call->caller).lost) return;
    if (memory.empty()) return finish(call, then);
    mail_.receive_bulk(call->caller, request_bulk_tag(call->slot), memory, call->piece,
                       [call, then, finish](bool finished) {
                         if (finished) finish(call, then);
                       });
  });
}

void Service::answer(Answer answer) {
  const auto sent = answer.sent;
  const bool posted =
      post([this, answer = std::move(answer)]() mutable { send_answer(std::move(answer)); });
  if (!posted && sent) sent();
}

void Service::send_answer(Answer answer) {
  Peer& peer = this->peer(answer.caller);
  peer.arrived.erase(answer.number);
  if (!peer.lost && answer.drain > 0) {
    mail_.drain_bulk(answer.caller, request_bulk_tag(answer.slot), answer.drain, answer.piece);
  }
  if (peer.gone()) {
    if (answer.sent) answer.sent();
    return;
  }
  const Heading heading{
      answer.kind, answer.slot, answer.number, answer.bulk.size(), 0, options_.piece, 0};
  mail_.send(answer.caller, message_of(heading, {}, answer.value));
  if (!answer.bulk.empty()) {
    mail_.send_bulk(answer.caller, reply_bulk_tag(answer.slot), answer.bulk,
                    [sent = std::move(answer.sent)](bool) {
                      if (sent) sent();
                    });
  } else if (answer.sent) {
    answer.sent();
  }
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
    post([this, deadline = Clock::now() + patience] { say_goodbye(deadline); });
    thread_.join();
  }
  return in_order_;
}

void Service::fail_kept_calls(int rank) {
  for (const auto& [number, weak] : std::map(peer(rank).arrived)) {
    if (const auto call = weak.lock()) detail::fail(call, "its endpoint was closed");
  }
}

void Service::say_goodbye(Clock::time_point deadline) {
  for (int rank = 0; rank < size(); ++rank) fail_kept_calls(rank);
  // Those failures are commands: they go before the goodbye.
  post([this, deadline] {
    leaving_ = true;
    deadline_ = deadline;
    for (int rank = 0; rank < size(); ++rank) {
      if (peer(rank).gone()) continue;
      peer(rank).told = true;
      mail_.send(rank, message_of({Kind::goodbye}, {}, {}));
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
