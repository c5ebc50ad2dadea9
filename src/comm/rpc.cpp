#include "trireme/comm/rpc.hpp"

#include <utility>

#include "rpc_service.hpp"

namespace trireme::comm::rpc {
namespace {

void require_may_wait(const Outgoing& call) {
  if (std::this_thread::get_id() == call.service_thread) {
    throw Error("rpc: a handler waits for the reply of {}: nothing could ever bring it", call.name);
  }
}

/// True for the first answer.
bool answer(Arrived& call, Kind kind, Bytes value, std::span<const std::byte> bulk,
            std::function<void()> sent) {
  if (call.answered.exchange(true)) {
    if (sent) sent();
    return false;
  }
  const auto service = call.service.lock();
  if (!service) {
    if (sent) sent();
    return true;
  }
  const std::size_t drain = call.received.exchange(true) ? 0 : call.bulk;
  service->answer({call.caller, call.slot, call.number, drain, call.piece, kind, std::move(value),
                   bulk, std::move(sent)});
  return true;
}

}  // namespace

Arrived::~Arrived() { answer(*this, Kind::failure, bytes_of("thrown away unanswered"), {}, {}); }

namespace detail {

bool ready(const Outgoing& call) {
  const std::lock_guard lock(call.mutex);
  return call.over;
}

bool wait_for(const Outgoing& call, double seconds) {
  std::unique_lock lock(call.mutex);
  if (!call.over && seconds > 0) require_may_wait(call);
  return call.ended.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return call.over; });
}

const Bytes& get(const Outgoing& call) {
  std::unique_lock lock(call.mutex);
  if (!call.over) require_may_wait(call);
  call.ended.wait(lock, [&] { return call.over; });
  if (call.error) std::rethrow_exception(call.error);
  return call.reply;
}

std::size_t bulk_bytes(const Outgoing& call) {
  const std::lock_guard lock(call.mutex);
  return call.reply_bulk;
}

int caller(const Arrived& call) { return call.caller; }
std::size_t request_bulk(const Arrived& call) { return call.bulk; }
std::size_t reply_room(const Arrived& call) { return call.room; }

void receive(std::shared_ptr<Arrived> call, std::span<std::byte> memory,
             std::function<void(std::shared_ptr<Arrived>)> then) {
  if (const auto service = call->service.lock()) {
    service->receive(std::move(call), memory, std::move(then));
  }
}

void reply(const std::shared_ptr<Arrived>& call, Bytes reply, std::span<const std::byte> bulk,
           std::function<void()> sent) {
  if (bulk.size() > call->room) {
    throw Error("a reply with {} bytes of bulk to {}: its caller has room for {}", bulk.size(),
                call->name, call->room);
  }
  if (reply.size() > call->largest) {
    throw Error("a reply of {} bytes to {}: replies have at most {}; send it as bulk", reply.size(),
                call->name, call->largest);
  }
  answer(*call, Kind::reply, std::move(reply), bulk, std::move(sent));
}

void fail(const std::shared_ptr<Arrived>& call, const std::string& words) {
  answer(*call, Kind::failure, bytes_of(words), {}, {});
}

}  // namespace detail

Endpoint::Endpoint(MPI_Comm parent, Options options)
    : service_(std::make_shared<Service>(parent, std::move(options))) {}
Endpoint::~Endpoint() { service_->close(0); }
int Endpoint::rank() const { return service_->rank(); }
int Endpoint::size() const { return service_->size(); }
void Endpoint::start() { service_->start(); }
void Endpoint::lose(int peer, const std::string& why) { service_->lose(peer, why); }
std::vector<int> Endpoint::lost() const { return service_->lost(); }
bool Endpoint::reachable(int peer) const { return service_->reachable(peer); }
Sent Endpoint::sent() const { return service_->sent(); }
bool Endpoint::close(double seconds) { return service_->close(seconds); }

void Endpoint::serve_bytes(const std::string& name, detail::Handler handler) {
  service_->serve(name, std::move(handler));
}

std::shared_ptr<Outgoing> Endpoint::call_bytes(const char* name, int peer, Bytes request,
                                               std::span<const std::byte> bulk,
                                               std::span<std::byte> room) {
  return service_->call(name, peer, std::move(request), bulk, room);
}

}  // namespace trireme::comm::rpc
