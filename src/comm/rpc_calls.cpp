// The calls themselves: made, delivered, answered.
#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc_service.hpp"

namespace trireme::comm::rpc {
namespace {

Bytes message_of(const Heading& heading, std::string_view name, std::span<const std::byte> value) {
  const auto letters = std::as_bytes(std::span(name));
  Bytes message(sizeof(Heading) + letters.size() + value.size());
  std::memcpy(message.data(), &heading, sizeof(Heading));
  const auto rest = message.begin() + sizeof(Heading);
  std::copy(value.begin(), value.end(), std::copy(letters.begin(), letters.end(), rest));
  return message;
}

}  // namespace

Endpoint::Endpoint(MPI_Comm parent, Options options)
    : service_(std::make_shared<Service>(parent, std::move(options))) {}
int Endpoint::size() const { return service_->size(); }
void Endpoint::start() { service_->start(); }
void Endpoint::lose(int peer, const std::string& why) { service_->lose(peer, why); }
bool Endpoint::close(double seconds) { return service_->close(seconds); }
std::thread::id Endpoint::service_thread() const { return service_->thread_id(); }

void Endpoint::serve_bytes(const std::string& name, Handler handler) {
  service_->serve(name, std::move(handler));
}

std::shared_future<Bytes> Endpoint::call_bytes(const char* name, int peer, const Bytes& request,
                                               std::span<const std::byte> bulk,
                                               std::span<std::byte> reply_bulk) {
  return service_->call(name, peer, request, bulk, reply_bulk);
}

void Arrived::receive(std::span<std::byte> memory,
                      std::function<void(std::shared_ptr<Arrived>)> then) {
  if (const auto own = service.lock()) own->receive(shared_from_this(), memory, std::move(then));
}

void Arrived::reply(const Bytes& value, std::span<const std::byte> bulk_of_reply,
                    const std::function<void()>& sent) {
  if (bulk_of_reply.size() > capacity) {
    throw Error("a reply with {} bytes of bulk to {}: its caller takes at most {}",
                bulk_of_reply.size(), name, capacity);
  }
  answer(Kind::reply, value, bulk_of_reply, sent);
}

void Arrived::fail(const std::string& reason) { answer(Kind::failure, encode(reason), {}, {}); }

/// Does nothing but for the first answer.
void Arrived::answer(Kind kind, const Bytes& value, std::span<const std::byte> bulk_of_reply,
                     const std::function<void()>& sent) {
  const bool first = !answered.exchange(true);
  if (const auto own = first ? service.lock() : nullptr) {
    const std::size_t drain = received.exchange(true) ? 0 : bulk;
    own->answer(*this, kind, value, bulk_of_reply, drain, sent);
  } else if (sent) {
    sent();
  }
}

std::shared_future<Bytes> Service::call(const char* name, int rank, const Bytes& request,
                                        std::span<const std::byte> bulk,
                                        std::span<std::byte> reply_bulk) {
  require_peer(rank, name);
  TRIREME_ASSERT(started_, "rpc: {} is called before start()", name);
  auto call = std::make_shared<Outgoing>();
  call->name = name;
  call->peer = rank;
  call->bulk = bulk;
  call->reply_bulk = reply_bulk;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) throw Error("rpc: {} is called after the endpoint was closed", name);
    Peer& peer = this->peer(rank);
    if (!peer.gone() && peer.free_slots.empty()) {
      constexpr int most_slots = 16'000;  // tags: the least that MPI_TAG_UB may be is 32767
      TRIREME_ASSERT(peer.slots < most_slots, "rpc: {} calls to rank {} are outstanding",
                     peer.slots, rank);
      peer.free_slots.push_back(peer.slots++);
    }
    if (!peer.gone()) {
      call->slot = peer.free_slots.back();
      peer.free_slots.pop_back();
    }
    call->number = ++calls_;
  }
  const Heading heading{Kind::request, call->slot,        call->number,
                        bulk.size(),   reply_bulk.size(), call->name.size()};
  std::shared_future<Bytes> reply = call->promise.get_future().share();
  if (!post([this, call, message = message_of(heading, call->name, request)]() mutable {
        begin(call, std::move(message));
      })) {
    throw Error("rpc: {} is called after the endpoint was closed", name);
  }
  return reply;
}

void Service::begin(const std::shared_ptr<Outgoing>& call, Bytes message) {
  Peer& peer = this->peer(call->peer);
  peer.calls.emplace(call->number, call);
  if (peer.gone() || leaving_) {
    call->sent = true;
    fail_calls(call->peer, peer.lost   ? "is lost"
                           : peer.left ? "has left"
                                       : "the endpoint was closed before the call");
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
  if (peer(call->peer).calls.erase(call->number) == 0) return;  // it has ended
  if (call->slot >= 0) {
    const std::lock_guard lock(mutex_);
    peer(call->peer).free_slots.push_back(call->slot);
  }
  if (call->error) {
    call->promise.set_exception(call->error);
  } else {
    call->promise.set_value(std::move(call->reply));
  }
}

void Service::fail_calls(int rank, const std::string& why) {
  const auto calls = peer(rank).calls;  // those that end leave the map
  for (const auto& [number, call] : calls) {
    if (!call->answered) {
      const std::string line = fmt::format("rank {}, {}: {}", rank, call->name, why);
      call->error = peer(rank).gone() ? std::make_exception_ptr(PeerLost(line))
                                      : std::make_exception_ptr(Error(line));
      call->answered = call->received = true;
    }
    end_if_complete(call);
  }
}

void Service::deliver(int rank, const Bytes& message) {
  TRIREME_ASSERT(message.size() >= sizeof(Heading), "rpc: {} bytes from rank {}", message.size(),
                 rank);
  const auto [first, rest] = std::pair(std::span(message).first(sizeof(Heading)),
                                       std::span(message).subspan(sizeof(Heading)));
  const auto heading = decode<Heading>(first);
  peer(rank).silent = 0;
  TRIREME_ASSERT(heading.name <= rest.size(), "rpc: a name of {} bytes", heading.name);
  const std::string_view name(reinterpret_cast<const char*>(rest.data()), heading.name);
  const auto value = rest.subspan(heading.name);
  switch (heading.kind) {
    case Kind::request:
      return deliver_request(rank, heading, name, value);
    case Kind::reply:
    case Kind::failure:
      return deliver_answer(rank, heading, value);
    case Kind::heartbeat:
      return;
    case Kind::disconnect:
      return deliver_disconnect(rank);
    case Kind::acknowledgement:
      return deliver_acknowledgement(rank);
    case Kind::confirmation:
      peer(rank).unconfirmed = false;
      return;
  }
  no_case_for(heading.kind);
}

void Service::deliver_request(int rank, const Heading& heading, std::string_view name,
                              std::span<const std::byte> value) {
  auto call = std::make_shared<Arrived>();
  call->service = weak_from_this();
  call->name = name;
  call->caller = rank;
  call->slot = heading.slot;
  call->number = heading.call;
  call->bulk = heading.bulk;
  call->capacity = heading.capacity;
  call->received = heading.bulk == 0;
  peer(rank).arrived.emplace(call->number, call);
  const auto handler = handlers_.find(name);
  try {
    if (leaving_) throw Error("rank {} has left", mail_.rank());
    if (handler == handlers_.end()) {
      throw Error("rank {} serves no method of this name", mail_.rank());
    }
    handler->second(call, value);
  } catch (const std::exception& error) {
    call->fail(error.what());
  }
}

void Service::deliver_answer(int rank, const Heading& heading, std::span<const std::byte> value) {
  const auto found = peer(rank).calls.find(heading.call);
  if (found == peer(rank).calls.end() || found->second->answered) {
    if (heading.bulk > 0) mail_.drain_bulk(rank, reply_bulk_tag(heading.slot), heading.bulk);
    return;
  }
  const auto call = found->second;
  if (heading.kind == Kind::failure) {
    call->error = std::make_exception_ptr(
        RemoteError("rank {}, {}: {}", rank, call->name, decode<std::string>(value)));
  }
  call->reply.assign(value.begin(), value.end());
  call->answered = true;
  call->received = heading.bulk == 0;
  if (call->received) return end_if_complete(call);
  const auto ended = [this, call, rank](bool finished) {
    call->received = true;
    if (!finished) {
      call->error = std::make_exception_ptr(
          PeerLost("rank {}, {}: lost while its reply arrived", rank, call->name));
    }
    end_if_complete(call);
  };
  mail_.receive_bulk(rank, reply_bulk_tag(call->slot), call->reply_bulk.first(heading.bulk), ended);
}

void Service::receive(std::shared_ptr<Arrived> call, std::span<std::byte> memory,
                      std::function<void(std::shared_ptr<Arrived>)> then) {
  if (memory.size() != call->bulk) {
    throw Error("{} bytes of bulk for memory of {}", call->bulk, memory.size());
  }
  if (call->received.exchange(true) && call->bulk > 0) {
    throw Error("the bulk was received before, or its caller has left");
  }
  post([this, call = std::move(call), memory, then = std::move(then)] {
    const auto finish = [call, then](bool finished) {
      try {
        if (finished) then(call);
      } catch (const std::exception& error) {
        call->fail(error.what());
      }
    };
    if (peer(call->caller).lost) return;
    if (memory.empty()) return finish(true);
    mail_.receive_bulk(call->caller, request_bulk_tag(call->slot), memory, finish);
  });
}

void Service::answer(const Arrived& call, Kind kind, const Bytes& value,
                     std::span<const std::byte> bulk, std::size_t drain,
                     const std::function<void()>& sent) {
  const Heading heading{kind, call.slot, call.number, bulk.size(), 0, 0};
  // The Arrived may be gone when this runs.
  const bool posted = post([this, heading, caller = call.caller, bulk, drain, sent,
                            message = message_of(heading, {}, value)] {
    Peer& peer = this->peer(caller);
    peer.arrived.erase(heading.call);
    if (!peer.lost && drain > 0) mail_.drain_bulk(caller, request_bulk_tag(heading.slot), drain);
    const bool waits = !peer.gone() && !bulk.empty();
    if (!peer.gone()) mail_.send(caller, message);
    if (waits) {
      mail_.send_bulk(caller, reply_bulk_tag(heading.slot), bulk, [sent](bool) {
        if (sent) sent();
      });
    } else if (sent) {
      sent();
    }
  });
  if (!posted && sent) sent();
}

}  // namespace trireme::comm::rpc
