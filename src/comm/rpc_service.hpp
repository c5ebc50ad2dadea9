// The protocol of remote calls, the thread that runs it, and the messages beneath.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "trireme/comm/rpc.hpp"

#include "requests.hpp"

namespace trireme::comm::rpc {

using Clock = std::chrono::steady_clock;

/// Small messages in order, and bulk straight into named memory, none of which can hold up the
/// thread that polls. For one thread. All MPI is non-blocking; what belongs to a peer that is given
/// up is left to MPI as it is, with its memory, since a dead peer's messages may neither finish nor
/// be cancelled.
class Mail {
 public:
  /// Whether the memory holds what came, or was read; false where the peer was given up.
  using Done = std::function<void(bool finished)>;

  /// Collective over `parent`. `broken` gets MPI's reason.
  Mail(MPI_Comm parent, std::function<void(int peer, const Bytes& message)> received,
       std::function<void(int peer, const std::string& why)> broken);
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;
  /// Gives up what is under way.
  ~Mail();
  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return wire_.comm; }

  /// Messages from one rank to another arrive in the order in which they were sent.
  void send(int peer, Bytes message, Done done = {});
  /// Two transfers between two ranks that are under way at once have different tags, from 1 on.
  void send_bulk(int peer, int tag, std::span<const std::byte> bulk, Done done);
  void receive_bulk(int peer, int tag, std::span<std::byte> memory, Done done);
  /// Receives what nobody wants.
  void drain_bulk(int peer, int tag, std::size_t bytes);

  /// Looks once at everything under way, and calls back; true where something moved.
  bool poll();
  bool idle() const { return transfers_.empty(); }
  bool idle(int peer) const;
  /// Whatever is under way with `peer` ends now, unfinished.
  void give_up(int peer);

 private:
  struct Transfer {
    int peer = 0;
    Requests requests;
    Bytes own;  // memory of messages and drains
    Done done;
  };
  void start(Transfer transfer, const std::function<void(Transfer&)>& post);
  bool finished(Transfer& transfer);
  bool look_for_messages();
  bool test_transfers();
  bool deliver();

  std::function<void(int peer, const Bytes& message)> received_;
  std::function<void(int peer, const std::string& why)> broken_callback_;
  Wire wire_;
  int rank_ = 0, size_ = 1;
  std::list<Transfer> transfers_, given_up_;
  std::vector<std::list<Transfer>> incoming_;  // messages, by peer
  std::vector<std::pair<int, std::string>> broken_;
  std::vector<bool> given_up_peers_;
};

constexpr int request_bulk_tag(int slot) { return 1 + 2 * slot; }
constexpr int reply_bulk_tag(int slot) { return 2 + 2 * slot; }

/// Begins every message; the method's name and the value's bytes follow.
struct Heading {
  Kind kind = Kind::heartbeat;
  std::int32_t slot = 0;       // of the caller for this peer: gives the tags of its bulk
  std::uint64_t call = 0;      // by the caller's count
  std::uint64_t bulk = 0;      // bytes beside the message
  std::uint64_t capacity = 0;  // bytes of bulk that a reply may have
  std::uint64_t name = 0;      // bytes of the method's name
};

/// A call that this rank made; the service thread's.
struct Outgoing {
  std::string name;
  int peer = 0, slot = -1;
  std::uint64_t number = 0;
  std::span<const std::byte> bulk;
  std::span<std::byte> reply_bulk;
  bool sent = false;      // the request's bulk is the caller's again
  bool answered = false;  // a reply is here, or never will be
  bool received = false;  // the reply's bulk too
  std::exception_ptr error;
  Bytes reply;
  std::promise<Bytes> promise;
};

class Service : public std::enable_shared_from_this<Service> {
 public:
  Service(MPI_Comm parent, Options options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service() { close(0); }
  void serve(const std::string& name, Handler handler);
  void start();
  int size() const { return mail_.size(); }
  std::thread::id thread_id() const { return thread_id_; }
  std::shared_future<Bytes> call(const char* name, int peer, const Bytes& request,
                                 std::span<const std::byte> bulk, std::span<std::byte> reply_bulk);
  void lose(int peer, const std::string& why);
  bool close(double seconds);

  void receive(std::shared_ptr<Arrived> call, std::span<std::byte> memory,
               std::function<void(std::shared_ptr<Arrived>)> then);
  /// `drain`: bytes of the request's bulk that nobody has received.
  void answer(const Arrived& call, Kind kind, const Bytes& value, std::span<const std::byte> bulk,
              std::size_t drain, const std::function<void()>& sent);

 private:
  struct Peer {
    // Guarded by mutex_; changed by the service thread alone.
    bool lost = false, left = false;
    std::vector<int> free_slots;
    int slots = 0;  // that there are
    // The service thread's.
    bool disconnecting = false, acknowledged = false;  // our disconnect was sent, and answered
    bool unconfirmed = false;                          // we acknowledged its disconnect; it has not
                                                       // confirmed that this arrived
    bool heartbeat_pending = false;                    // the last one is not sent yet
    double silent = 0;                                 // seconds
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
  bool turn();  // one look at everything; true where something moved
  void watch_peers(double seconds);
  void send(int rank, Kind kind, Mail::Done done = {});
  void begin(const std::shared_ptr<Outgoing>& call, Bytes message);
  void deliver(int rank, const Bytes& message);
  void deliver_request(int rank, const Heading& heading, std::string_view name,
                       std::span<const std::byte> value);
  void deliver_answer(int rank, const Heading& heading, std::span<const std::byte> value);
  void deliver_disconnect(int rank);
  void deliver_acknowledgement(int rank);
  /// Ends the outstanding calls to a peer that will not answer any more.
  void fail_calls(int rank, const std::string& why);
  void end_if_complete(const std::shared_ptr<Outgoing>& call);
  void lose_now(int rank, const std::string& why);
  void send_disconnect(Clock::time_point deadline);
  bool may_leave();
  void leave();

  Options options_;
  std::map<std::string, Handler, std::less<>> handlers_;
  std::mutex mutex_;
  std::condition_variable wake_;  // of the service thread
  std::vector<std::function<void()>> commands_;
  std::vector<Peer> peers_;
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

}  // namespace trireme::comm::rpc
