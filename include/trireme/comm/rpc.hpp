// Remote calls over MPI point-to-point: a small typed request with bulk bytes beside it, and a
// reply likewise, between any two ranks and at any time. The idea is Birrell and Nelson,
// "Implementing Remote Procedure Calls" (1984); bulk data beside small arguments is Mercury's
// (Soumagne et al., 2013). docs/communication.md has its costs.
//
//   struct Trial { std::int64_t number; double learning_rate; };
//   inline constexpr rpc::Method<std::int64_t, Trial> next_trial{"next_trial"};
//
//   rpc::Endpoint endpoint(session.world(), {});
//   endpoint.serve(next_trial, [&](rpc::Call<Trial> call, const std::int64_t& done) {
//     call.reply(draw(done));               // now, or later from any thread
//   });
//   endpoint.start();
//   Trial trial = endpoint.call(next_trial, 0, done).get();
//   endpoint.close();
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <mpi.h>

#include "trireme/core/error.hpp"

namespace trireme::comm::rpc {

/// A call that its peer refused or failed at: "rank 3, push: <the handler's reason>".
class RemoteError : public Error {
 public:
  using Error::Error;
};

/// A call to a peer that died, stopped sending heartbeats or left before it answered.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// A call's name and types, the same on both sides: strings or trivially copyable types, Nothing
/// for none. They are small; what is large is bulk.
template <class Request, class Reply>
struct Method {
  const char* name;
};

struct Nothing {};

struct Options {
  /// The ranks that this one has to do with, itself perhaps included; both sides must name each
  /// other. Calls to others fail, and the end does not wait for them, dead or alive. Empty: all.
  std::vector<int> peers;
  /// A peer that is silent for so many seconds is lost; 0: none is. Peers send each other
  /// heartbeats five times as often, from a thread, so one that computes is not silent. Time in
  /// which this process itself could not run hardly counts.
  double silence = 0;
  /// Called once for each peer that is lost, on the service thread, with the reason ("silent for
  /// 10.0 s"). Its outstanding calls have failed by then.
  std::function<void(int peer, const std::string& why)> on_lost;
};

using Bytes = std::vector<std::byte>;

/// Ranks of one run have one binary, hence one representation: values are sent as they are in
/// memory.
template <class Value>
Bytes encode(const Value& value) {
  const void* data = &value;
  std::size_t bytes = sizeof(Value);
  if constexpr (std::is_same_v<Value, std::string>) {
    data = value.data();
    bytes = value.size();
  } else {
    static_assert(std::is_trivially_copyable_v<Value>);
  }
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}
template <class Value>
Value decode(std::span<const std::byte> bytes) {
  if constexpr (std::is_same_v<Value, std::string>) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  } else {
    if (bytes.size() != sizeof(Value)) {
      throw Error("{} bytes where the type has {}: both sides must name the same types",
                  bytes.size(), sizeof(Value));
    }
    Value value;
    std::memcpy(&value, bytes.data(), sizeof(Value));
    return value;
  }
}

/// A reply that is on its way. Copies share it.
template <class Reply>
class Future {
 public:
  Future() = default;
  Future(std::shared_future<Bytes> reply, std::thread::id service)
      : reply_(std::move(reply)), service_(service) {}
  /// True once the call is over, well or not: then the bulk memory is the caller's again.
  bool ready() const {
    return reply_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  /// Waits; throws RemoteError, PeerLost, or Error where this endpoint was closed.
  Reply get() const {
    TRIREME_ASSERT(ready() || std::this_thread::get_id() != service_,
                   "rpc: a handler waits for a reply, which only its own thread can receive");
    return decode<Reply>(reply_.get());
  }

 private:
  std::shared_future<Bytes> reply_;
  std::thread::id service_;  // which must not wait
};

class Service;  // src/comm/rpc_service.hpp
enum class Kind : std::uint32_t {
  request,
  reply,
  failure,
  heartbeat,
  disconnect,
  acknowledgement,
  confirmation
};

/// A call that has arrived, without its types; see Call.
struct Arrived : std::enable_shared_from_this<Arrived> {
  std::weak_ptr<Service> service;
  std::string name;
  int caller = 0, slot = 0;
  std::uint64_t number = 0;
  std::size_t bulk = 0, capacity = 0;
  std::atomic<bool> received{false};  // somebody takes the bulk
  std::atomic<bool> answered{false};
  Arrived() = default;
  Arrived(const Arrived&) = delete;
  Arrived& operator=(const Arrived&) = delete;
  ~Arrived() { fail("destroyed unanswered"); }

  void receive(std::span<std::byte> memory, std::function<void(std::shared_ptr<Arrived>)> then);
  void reply(const Bytes& value, std::span<const std::byte> bulk_of_reply,
             const std::function<void()>& sent);
  void fail(const std::string& reason);

 private:
  void answer(Kind kind, const Bytes& value, std::span<const std::byte> bulk_of_reply,
              const std::function<void()>& sent);
};

/// A call that has arrived and is to be answered once: at once in its handler, or kept and answered
/// later, from any thread. One that is destroyed unanswered fails at the caller; further answers do
/// nothing, as do answers to a caller that is lost. It may outlive the endpoint.
template <class Reply>
class Call {
 public:
  explicit Call(std::shared_ptr<Arrived> call) : call_(std::move(call)) {}
  int caller() const { return call_->caller; }
  /// Bytes of bulk that the caller sends with the request, and that it takes with the reply.
  std::size_t bulk_bytes() const { return call_->bulk; }
  std::size_t capacity() const { return call_->capacity; }

  /// Receives the request's bulk straight into `memory`, of exactly bulk_bytes(), which must stay
  /// until `then` has been called or the endpoint is gone; then calls `then` with this call on the
  /// service thread. Where the caller is lost meanwhile, `then` is destroyed uncalled. At most
  /// once; bulk that nobody receives before the answer is drained. What `then` throws is the
  /// caller's error.
  void receive(std::span<std::byte> memory, std::function<void(Call)> then) {
    std::exchange(call_, nullptr)
        ->receive(memory, [then = std::move(then)](std::shared_ptr<Arrived> call) {
          then(Call(std::move(call)));
        });
  }
  /// `bulk`, at most capacity() bytes, must stay as it is until `sent` is called on the service
  /// thread (or by this very call, where it was answered before or the endpoint is gone).
  void reply(const Reply& reply, std::span<const std::byte> bulk = {},
             const std::function<void()>& sent = {}) {
    call_->reply(encode(reply), bulk, sent);
  }
  void fail(const std::string& reason) { call_->fail(reason); }

 private:
  std::shared_ptr<Arrived> call_;
};

using Handler = std::function<void(std::shared_ptr<Arrived>, std::span<const std::byte>)>;

/// This rank's end of the calls among the ranks of `parent`. A service thread sends, receives and
/// runs the handlers; between fruitless looks it backs off to 1 ms, so that an idle endpoint costs
/// no core. Nothing is collective but the making and start(): a peer that dies fails its own calls
/// and holds up nobody. After a loss the process must not end MPI: Session::abandon. Bulk is in
/// host memory. Where SIGPIPE is not handled it is ignored from now on.
///
/// Handlers run one at a time on the service thread: they must be short and must not wait for a
/// reply; longer work belongs to another thread, which may keep the Call. An exception that leaves
/// a handler is its caller's error.
class Endpoint {
 public:
  /// Collective over `parent`, whose messages it keeps apart from all others. Ranks are those of
  /// `parent`.
  Endpoint(MPI_Comm parent, Options options);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  /// close(0) unless it was closed.
  ~Endpoint() { close(0); }
  int size() const;

  /// Answers `method` by handler(Call<Reply>, const Request&). Before start().
  template <class Request, class Reply, class Handle>
  void serve(const Method<Request, Reply>& method, Handle handler) {
    serve_bytes(method.name, [handler = std::move(handler)](std::shared_ptr<Arrived> call,
                                                            std::span<const std::byte> request) {
      handler(Call<Reply>(std::move(call)), decode<Request>(request));
    });
  }
  /// Begins to serve, to send heartbeats and to watch. Collective; before any call.
  void start();

  /// Calls `method` at `peer`, which may be this rank, with `bulk` beside the request and memory
  /// for bulk in the reply, received straight into it. Both must stay until the call is over
  /// (ready()); after PeerLost until the endpoint is gone, for a message may still be on its way.
  /// Throws Error where the endpoint is closed. A lost peer, or one that left, fails the future. At
  /// most 16,000 calls to one peer may be outstanding.
  template <class Request, class Reply>
  Future<Reply> call(const Method<Request, Reply>& method, int peer,
                     const std::type_identity_t<Request>& request,
                     std::span<const std::byte> bulk = {}, std::span<std::byte> reply_bulk = {}) {
    return {call_bytes(method.name, peer, encode(request), bulk, reply_bulk), service_thread()};
  }

  /// Declares `peer` lost, as if it were silent: for callers that know more.
  void lose(int peer, const std::string& why);

  /// Disconnects: new calls are refused, calls that were kept unanswered fail at their callers, own
  /// outstanding ones fail here, and all reachable peers get a message. Returns true once they have
  /// confirmed it, false when `seconds` have passed first or a peer was lost before; lost peers are
  /// not waited for. No peer need close at the same time: its later calls to this rank fail with
  /// PeerLost. Not from a handler.
  bool close(double seconds = 10);

 private:
  void serve_bytes(const std::string& name, Handler handler);
  std::shared_future<Bytes> call_bytes(const char* name, int peer, const Bytes& request,
                                       std::span<const std::byte> bulk,
                                       std::span<std::byte> reply_bulk);
  std::thread::id service_thread() const;
  std::shared_ptr<Service> service_;
};

}  // namespace trireme::comm::rpc
