#include "trireme/comm/rpc.hpp"

#include <utility>

#include "rpc_service.hpp"

namespace trireme::comm::rpc {
namespace {

/// Does nothing but for the first answer.
void answer(Arrived& call, Kind kind, Bytes value, std::span<const std::byte> bulk,
            std::function<void()> sent) {
  if (call.answered.exchange(true)) {
    if (sent) sent();
    return;
  }
  const auto service = call.service.lock();
  if (!service) {
    if (sent) sent();
    return;
  }
  const std::size_t drain = call.received.exchange(true) ? 0 : call.bulk;
  service->answer({call.caller, call.slot, call.number, drain, call.piece, kind, std::move(value),
                   bulk, std::move(sent)});
}

}  // namespace

Arrived::~Arrived() { answer(*this, Kind::failure, bytes_of("destroyed unanswered"), {}, {}); }

bool FutureBase::ready() const {
  const std::lock_guard lock(call_->mutex);
  return call_->over;
}

const Bytes& FutureBase::wait() const {
  std::unique_lock lock(call_->mutex);
  if (!call_->over && std::this_thread::get_id() == call_->service_thread) {
    throw Error("rpc: a handler waits for the reply of {}: nothing could ever bring it",
                call_->name);
  }
  call_->ended.wait(lock, [&] { return call_->over; });
  if (call_->error) std::rethrow_exception(call_->error);
  return call_->reply;
}

std::size_t FutureBase::bulk_bytes() const {
  const std::lock_guard lock(call_->mutex);
  return call_->reply_bulk;
}

int CallBase::caller() const { return call_->caller; }
std::size_t CallBase::bulk_bytes() const { return call_->bulk; }
std::size_t CallBase::room() const { return call_->room; }

void CallBase::receive_bytes(std::span<std::byte> memory,
                             std::function<void(std::shared_ptr<Arrived>)> then) {
  if (const auto service = call_->service.lock()) {
    service->receive(std::move(call_), memory, std::move(then));
  }
}

void CallBase::reply_bytes(Bytes reply, std::span<const std::byte> bulk,
                           std::function<void()> sent) {
  if (bulk.size() > call_->room) {
    throw Error("a reply with {} bytes of bulk to {}: its caller has room for {}", bulk.size(),
                call_->name, call_->room);
  }
  if (reply.size() > call_->largest) {
    throw Error("a reply of {} bytes to {}: replies have at most {}; send it as bulk", reply.size(),
                call_->name, call_->largest);
  }
  answer(*call_, Kind::reply, std::move(reply), bulk, std::move(sent));
}

void CallBase::fail(const std::string& reason) { fail_call(*call_, reason); }

void fail_call(Arrived& call, const std::string& reason) {
  answer(call, Kind::failure, bytes_of(reason), {}, {});
}

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

void Endpoint::serve_bytes(const std::string& name, Handler handler) {
  service_->serve(name, std::move(handler));
}

std::shared_ptr<Outgoing> Endpoint::call_bytes(const char* name, int peer, Bytes request,
                                               std::span<const std::byte> bulk,
                                               std::span<std::byte> room) {
  return service_->call(name, peer, std::move(request), bulk, room);
}

}  // namespace trireme::comm::rpc
