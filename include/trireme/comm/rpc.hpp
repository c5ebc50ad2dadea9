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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <mpi.h>

#include "trireme/comm/rpc_encoding.hpp"
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

/// A call's name and types, the same on both sides. Request and Reply are what Encoding knows:
/// trivially copyable types, strings, vectors of trivially copyable types; Nothing for none. They
/// are meant to be small (Options::largest_message); what is large is bulk.
template <class Request, class Reply>
struct Method {
  const char* name;
};

struct Nothing {};

struct Options {
  /// Calls that this rank may have outstanding at one peer; one more waits in `call`. Where a
  /// handler keeps calls until others have come, this must be as many as it keeps and one more.
  int outstanding = 16;
  /// The ranks that this one has to do with, itself perhaps included; both sides must name each
  /// other. Calls to others fail, and the end does not wait for them, dead or alive. Empty: all.
  std::vector<int> peers;
  /// Seconds between the heartbeats that this rank sends to `watched`; 0: none.
  double beat = 0;
  /// A watched peer that is silent for so many seconds is lost; 0: none is. Heartbeats come from a
  /// thread, so a peer that computes is not silent. Time in which this process itself could not run
  /// hardly counts.
  double silence = 0;
  /// The peers that get this rank's heartbeats and are watched; likewise.
  std::vector<int> watched;
  /// Called once for each peer that is lost, on the service thread, with the reason ("silent for
  /// 10.0 s"). Its outstanding calls have failed by then.
  std::function<void(int peer, const std::string& why)> on_lost;
  std::size_t largest_message = std::size_t{1} << 20;  // bytes of a request or reply without bulk
  std::size_t piece = std::size_t{1} << 30;            // bulk is cut into messages of so many bytes
};

/// What this rank has sent to other ranks (to itself costs nothing).
struct Sent {
  std::int64_t bulk_bytes = 0;     // of requests and replies
  std::int64_t message_bytes = 0;  // requests, replies and heartbeats, with their headings
  std::int64_t messages = 0;
};

class Service;    // src/comm/rpc_service.hpp
struct Outgoing;  // a call that this rank made
struct Arrived;   // a call that this rank answers
using Bytes = std::vector<std::byte>;

/// A reply that is on its way, without its type. Copies share it.
class FutureBase {
 public:
  FutureBase() = default;
  explicit FutureBase(std::shared_ptr<Outgoing> call) : call_(std::move(call)) {}
  bool valid() const { return call_ != nullptr; }
  /// True once the call is over, well or not: then the bulk memory is the caller's again. Cheap
  /// enough to poll.
  bool ready() const;
  /// Bytes of bulk that came with the reply; after the end.
  std::size_t bulk_bytes() const;

 protected:
  const Bytes& wait() const;  // throws what the call ended with

 private:
  std::shared_ptr<Outgoing> call_;
};

template <class Reply>
class Future : public FutureBase {
 public:
  using FutureBase::FutureBase;
  /// Waits; throws RemoteError, PeerLost, or Error where this endpoint was closed.
  Reply get() const { return Encoding<Reply>::decode(wait()); }
};

/// A call that has arrived, without its types; see Call.
class CallBase {
 public:
  explicit CallBase(std::shared_ptr<Arrived> call) : call_(std::move(call)) {}
  int caller() const;
  /// Bytes of bulk that the caller sends with the request.
  std::size_t bulk_bytes() const;
  /// Bytes of bulk that the caller has room for.
  std::size_t room() const;
  void fail(const std::string& reason);

 protected:
  void receive_bytes(std::span<std::byte> memory,
                     std::function<void(std::shared_ptr<Arrived>)> then);
  void reply_bytes(Bytes reply, std::span<const std::byte> bulk, std::function<void()> sent);

 private:
  std::shared_ptr<Arrived> call_;
};

/// A call that has arrived and is to be answered once: at once in its handler, or kept and answered
/// later, from any thread. One that is destroyed unanswered fails at the caller; further answers do
/// nothing, as do answers to a caller that is lost. It may outlive the endpoint.
template <class Reply>
class Call : public CallBase {
 public:
  using CallBase::CallBase;
  /// Receives the request's bulk straight into `memory`, of exactly bulk_bytes(), which must stay
  /// until `then` has been called or the endpoint is gone; then calls `then` with this call on the
  /// service thread. Where the caller is lost meanwhile, `then` is destroyed uncalled. At most
  /// once; bulk that nobody receives before the answer is drained. What `then` throws is the
  /// caller's error.
  void receive(std::span<std::byte> memory, std::function<void(Call)> then) {
    receive_bytes(memory, [then = std::move(then)](std::shared_ptr<Arrived> call) {
      then(Call(std::move(call)));
    });
  }
  /// `bulk`, at most room() bytes, must stay as it is until `sent` is called on the service thread
  /// (or by this very call, where it was answered before or the endpoint is gone).
  void reply(const Reply& reply, std::span<const std::byte> bulk = {},
             std::function<void()> sent = {}) {  // NOLINT(performance-*): moved, in a template
    reply_bytes(Encoding<Reply>::encode(reply), bulk, std::move(sent));
  }
};

using Handler = std::function<void(std::shared_ptr<Arrived>, std::span<const std::byte>)>;

/// This rank's end of the calls among the ranks of `parent`. A service thread sends, receives and
/// runs the handlers; between fruitless looks it backs off to 1 ms, so that an idle endpoint costs
/// no core. All MPI is non-blocking and nothing is collective but the making and start(): a peer
/// that dies fails its own calls and holds up nobody. After a loss the process must not end MPI:
/// Session::abandon. Bulk is in host memory. Where SIGPIPE is not handled it is ignored from now
/// on: a write to a dead peer must be an error.
///
/// Handlers run one at a time on the service thread: they must be short and must not wait (for a
/// future, or in `call` for room); longer work belongs to another thread, which may keep the Call.
/// An exception that leaves a handler is its caller's error.
class Endpoint {
 public:
  /// Collective over `parent`, whose messages it keeps apart from all others. Ranks are those of
  /// `parent`.
  Endpoint(MPI_Comm parent, Options options);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  /// close(0) unless it was closed.
  ~Endpoint();
  int rank() const;
  int size() const;

  /// Answers `method` by handler(Call<Reply>, const Request&). Before start().
  template <class Request, class Reply, class Handle>
  void serve(const Method<Request, Reply>& method, Handle handler) {
    serve_bytes(method.name, [handler = std::move(handler)](std::shared_ptr<Arrived> call,
                                                            std::span<const std::byte> request) {
      handler(Call<Reply>(std::move(call)), Encoding<Request>::decode(request));
    });
  }
  /// Begins to serve, to send heartbeats and to watch. Collective; before any call.
  void start();

  /// Calls `method` at `peer`, which may be this rank, with `bulk` beside the request and room for
  /// bulk in the reply, received straight into it. Both must stay until the call is over (ready());
  /// after PeerLost until the endpoint is gone, for a message may still be on its way. Waits while
  /// Options::outstanding calls to `peer` are not over; throws Error where that would be in a
  /// handler, and where the endpoint is closed. A lost peer, or one that left, fails the future.
  template <class Request, class Reply>
  Future<Reply> call(const Method<Request, Reply>& method, int peer,
                     const std::type_identity_t<Request>& request,
                     std::span<const std::byte> bulk = {}, std::span<std::byte> room = {}) {
    return Future<Reply>(
        call_bytes(method.name, peer, Encoding<Request>::encode(request), bulk, room));
  }

  /// Declares `peer` lost, as if it were silent: for callers that know more.
  void lose(int peer, const std::string& why);
  /// The peers that are lost, in order of rank.
  std::vector<int> lost() const;
  /// True where `peer` is neither lost nor closed.
  bool reachable(int peer) const;
  Sent sent() const;

  /// Disconnects: new calls are refused, calls that were kept unanswered fail at their callers, own
  /// outstanding ones fail here, and all reachable peers get a message. Returns true once they have
  /// confirmed it, false when `seconds` have passed first; lost peers are not waited for. No peer
  /// need close at the same time: its later calls to this rank fail with PeerLost. Not from a
  /// handler.
  bool close(double seconds = 10);

 private:
  void serve_bytes(const std::string& name, Handler handler);
  std::shared_ptr<Outgoing> call_bytes(const char* name, int peer, Bytes request,
                                       std::span<const std::byte> bulk, std::span<std::byte> room);
  std::shared_ptr<Service> service_;
};

}  // namespace trireme::comm::rpc
