// The calls themselves: made, delivered, answered.
#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc_service.hpp"

namespace trireme::comm::rpc {

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

void Service::fail_calls(int rank, const std::string& why) {
  const auto calls = peer(rank).calls;  // those that end leave the map
  for (const auto& [number, call] : calls) {
    if (!call->answered) {
      const std::string line = fmt::format("rank {}, {}: {}", rank, call->name, why);
      const std::lock_guard lock(call->mutex);
      call->error = peer(rank).gone() ? std::make_exception_ptr(PeerLost(line))
                                      : std::make_exception_ptr(Error(line));
      call->answered = call->received = true;
    }
    end_if_complete(call);
  }
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
    case Kind::heartbeat:
      return;
    case Kind::disconnect:
      return deliver_disconnect(rank);
    case Kind::acknowledgement:
      peer(rank).acknowledged = true;
      fail_calls(rank, "the endpoint was closed before the reply");
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
    fail_call(*call, error.what());
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
      fail_call(*call, error.what());
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

}  // namespace trireme::comm::rpc
