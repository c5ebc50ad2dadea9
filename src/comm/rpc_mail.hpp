// The messages beneath remote calls: small ones in order, bulk straight into named memory, none of
// which can hold up the thread that polls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "trireme/comm/rpc.hpp"

namespace trireme::comm::rpc {

/// For one thread. All MPI is non-blocking; what belongs to a peer that is given up is left to MPI
/// as it is, with its memory, since a dead peer's messages may neither finish nor be cancelled.
class Mail {
 public:
  /// Whether the memory holds what came, or was read; false where the peer was given up.
  using Done = std::function<void(bool finished)>;
  struct Callbacks {
    std::function<void(int peer, Bytes message)> received;
    std::function<void(int peer, const std::string& why)> broken;  // MPI's reason
  };

  /// Collective over `parent`.
  Mail(MPI_Comm parent, std::size_t piece, Callbacks callbacks);
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;
  /// Gives up what is under way.
  ~Mail();
  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return comm_; }
  std::size_t piece() const { return piece_; }
  static constexpr int first_bulk_tag = 1;

  /// Messages from one rank to another arrive in the order in which they were sent.
  void send(int peer, Bytes message, Done done = {});
  /// Two transfers between two ranks that are under way at once have different tags.
  void send_bulk(int peer, int tag, std::span<const std::byte> bulk, Done done);
  /// `piece` is the sender's.
  void receive_bulk(int peer, int tag, std::span<std::byte> memory, std::size_t piece, Done done);
  /// Receives what nobody wants.
  void drain_bulk(int peer, int tag, std::size_t bytes, std::size_t piece);

  /// Looks once at everything under way, and calls back; true where something moved.
  bool poll();
  bool idle() const { return transfers_.empty(); }
  bool idle(int peer) const;
  /// Whatever is under way with `peer` ends now, unfinished.
  void give_up(int peer);
  /// May be called from any thread when no other call runs.
  const Sent& sent() const { return sent_; }

 private:
  struct Transfer {
    int peer = 0;
    std::vector<MPI_Request> requests;
    Bytes own;  // memory of messages and drains
    Done done;
  };
  struct Incoming {
    Bytes message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  bool look_for_messages();
  bool test_transfers();
  bool deliver();
  void post_receives(Transfer& transfer, std::span<std::byte> memory, int tag, std::size_t piece);
  void note_broken(int peer, int code, const char* call);
  void report_broken();

  Callbacks callbacks_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::size_t piece_;
  std::vector<Transfer> transfers_;
  std::vector<std::deque<Incoming>> incoming_;  // by peer
  std::vector<std::pair<int, std::string>> broken_;
  std::vector<Transfer> given_up_;
  std::vector<bool> given_up_peers_;
  Sent sent_;
};

}  // namespace trireme::comm::rpc
