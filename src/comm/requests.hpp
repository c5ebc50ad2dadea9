// A set of nonblocking messages, tested together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {

/// Of a message. Open MPI's TCP sends larger ones only after an answer, which waits behind what the
/// receiver sends itself: two ranks that exchange them would take turns.
constexpr std::size_t largest_piece = std::size_t{1} << 20;

/// Where messages go, and what counts the bytes that are sent; null: nothing does.
struct Wire {
  MPI_Comm comm = MPI_COMM_NULL;
  int first_tag = 0;
  std::int64_t* sent = nullptr;
  const MessageAddress* address = nullptr;  // of what is sent and received; null: as it is
  /// Messages up to 1 GiB have one piece: for who probes them, or sends before they are expected,
  /// since pieces that arrive early take memory of the MPI library.
  bool whole = false;
};

/// Messages of one operation, in bytes (MPI has no bf16), cut into pieces that Open MPI's TCP sends
/// without an answer (Session), but no more than some hundred. A message must be exactly as long as
/// the receive that was posted for it: ranks that disagree on a size get an error instead of
/// computing with what is left in the buffer.
class Requests {
 public:
  explicit Requests(const Wire& wire) : wire_(wire) {}
  Requests(Requests&& other) noexcept;
  Requests& operator=(Requests&& other) = delete;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  /// `tag` counts from the wire's first.
  void send(const std::byte* data, std::size_t bytes, int peer, int tag);
  void receive(std::byte* data, std::size_t bytes, int peer, int tag);
  /// A message that was probed.
  void receive(MPI_Message& message, std::byte* data, int bytes);
  /// True once all are finished; then the set is empty.
  bool test();

 private:
  std::size_t piece_of(std::size_t bytes) const;
  void* known(const std::byte* memory) const;  // as MPI knows it
  static void check_length(const MPI_Status& status, int expected);

  Wire wire_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> indices_;  // of requests that have ended
  std::vector<int> lengths_;  // of receives; −1 for sends
  std::size_t ended_ = 0;     // requests
};

}  // namespace trireme::comm
