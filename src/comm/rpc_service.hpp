// The protocol of remote calls, and the thread that runs it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "trireme/comm/rpc.hpp"

#include "rpc_mail.hpp"

namespace trireme::comm::rpc {

using Clock = std::chrono::steady_clock;

enum class Kind : std::uint32_t { request, reply, failure, heartbeat, disconnect, acknowledgement };

/// Begins every message; the method's name and the value's bytes follow.
struct Heading {
  Kind kind = Kind::heartbeat;
  std::int32_t slot = 0;    // of the caller for this peer: gives the tags of its bulk
  std::uint64_t call = 0;   // by the caller's count
  std::uint64_t bulk = 0;   // bytes beside the message
  std::uint64_t room = 0;   // bytes of bulk that a reply may have
  std::uint64_t piece = 0;  // by which the sender cuts bulk
  std::uint64_t name = 0;   // bytes of the method's name
};

struct Outgoing {
  std::string name;
  int peer = 0, slot = -1;
  std::uint64_t number = 0;
  std::span<const std::byte> bulk;
  std::span<std::byte> room;
  // The service thread's.
  bool sent = false;      // the request's bulk is the caller's again
  bool answered = false;  // a reply is here, or never will be
  bool received = false;  // the reply's bulk too
  // Guarded by `mutex`; the ending does not change once it is over.
  mutable std::mutex mutex;
  mutable std::condition_variable ended;
  bool over = false;
  std::exception_ptr error;
  Bytes reply;
  std::size_t reply_bulk = 0;
  std::thread::id service_thread;  // which must not wait
};

struct Arrived {
  std::weak_ptr<Service> service;
  std::string name;
  int caller = 0, slot = 0;
  std::uint64_t number = 0, piece = 0;
  std::size_t bulk = 0, room = 0;
  std::size_t largest = 0;            // bytes that a reply may have
  std::atomic<bool> received{false};  // somebody takes the bulk
  std::atomic<bool> answered{false};
  Arrived() = default;
  Arrived(const Arrived&) = delete;
  Arrived& operator=(const Arrived&) = delete;
  ~Arrived();
};

/// What is needed to answer a call, when its Arrived may be gone.
struct Answer {
  int caller = 0, slot = 0;
  std::uint64_t number = 0;
  std::size_t drain = 0, piece = 0;  // bulk that nobody has received
  Kind kind = Kind::failure;
  Bytes value;
  std::span<const std::byte> bulk;
  std::function<void()> sent;
};

class Service : public std::enable_shared_from_this<Service> {
 public:
  Service(MPI_Comm parent, Options options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service();
  void serve(const std::string& name, Handler handler);
  void start();
  int rank() const { return mail_.rank(); }
  int size() const { return mail_.size(); }
  std::shared_ptr<Outgoing> call(const char* name, int peer, Bytes request,
                                 std::span<const std::byte> bulk, std::span<std::byte> room);
  void lose(int peer, const std::string& why);
  std::vector<int> lost() const;
  bool reachable(int peer) const;
  Sent sent() const;
  bool close(double seconds);

  void receive(std::shared_ptr<Arrived> call, std::span<std::byte> memory,
               std::function<void(std::shared_ptr<Arrived>)> then);
  void answer(Answer answer);

 private:
  struct Peer {
    // Guarded by mutex_; changed by the service thread alone.
    bool lost = false, left = false;
    std::vector<int> slots;  // free ones
    // The service thread's.
    bool disconnecting = false, acknowledged = false;  // our disconnect was sent, and answered
    bool heartbeat_pending = false;                    // the last one is not sent yet
    bool watched = false;
    double silent = 0;  // seconds
    std::map<std::uint64_t, std::shared_ptr<Outgoing>> calls;
    std::map<std::uint64_t, std::weak_ptr<Arrived>> arrived;  // and unanswered
    bool gone() const { return lost || left; }
    /// No message of it is under way any more: it answers a disconnect even where its own crosses
    /// it.
    bool quiet() const { return disconnecting ? acknowledged : left; }
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  /// Runs `command` on the service thread; false where that is over, and nothing happens.
  bool post(std::function<void()> command);
  void require_peer(int rank, const char* what) const;

  void run();
  void guarded_run();
  bool turn();  // one look at everything; true where something moved
  void watch_peers(double seconds);
  void send_heartbeat(int rank);
  void begin(const std::shared_ptr<Outgoing>& call, Bytes message);
  void deliver(int rank, const Bytes& message);
  void deliver_request(int rank, const Heading& heading, std::string_view name,
                       std::span<const std::byte> value);
  void deliver_answer(int rank, const Heading& heading, std::span<const std::byte> value);
  void deliver_disconnect(int rank);
  void send_answer(Answer answer);
  /// Ends the outstanding calls to a peer that will not answer any more.
  void fail_calls(int rank, const std::string& why);
  void fail_kept_calls(int rank);
  void end_if_complete(const std::shared_ptr<Outgoing>& call);
  void lose_now(int rank, const std::string& why);
  void send_disconnect(Clock::time_point deadline);
  bool may_leave();
  void leave();

  Options options_;
  std::map<std::string, Handler, std::less<>> handlers_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // of the service thread
  std::condition_variable room_;  // of those who wait for a slot
  std::vector<std::function<void()>> commands_;
  std::vector<Peer> peers_;
  Sent sent_;
  bool started_ = false, closing_ = false, over_ = false, in_order_ = true;
  std::uint64_t calls_ = 0;
  // The service thread's.
  bool leaving_ = false;
  Clock::time_point deadline_;
  Clock::time_point last_heartbeat_, last_turn_;
  Mail mail_;
  std::thread thread_;
  std::thread::id thread_id_;
};

constexpr int request_bulk_tag(int slot) { return Mail::first_bulk_tag + 2 * slot; }
constexpr int reply_bulk_tag(int slot) { return Mail::first_bulk_tag + 2 * slot + 1; }
Bytes message_of(const Heading& heading, std::string_view name, std::span<const std::byte> value);
Bytes bytes_of(std::string_view text);
/// Answers `call` by an error, unless it was answered before.
void fail_call(Arrived& call, const std::string& reason);

}  // namespace trireme::comm::rpc
