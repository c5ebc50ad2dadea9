// A set of nonblocking messages, tested together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "trireme/comm/mpi_communicator.hpp"

namespace trireme::comm {

/// Where messages go, and what counts the bytes that are sent; null: nothing does.
struct Wire {
  MPI_Comm comm = MPI_COMM_NULL;
  int first_tag = 0;
  std::int64_t* sent = nullptr;
  const MessageAddress* address = nullptr;  // of what is sent and received; null: as it is
};

/// Messages of one operation, in bytes (MPI has no bf16), cut where they exceed 1 GiB, since counts
/// are ints. A message must be exactly as long as the receive that was posted for it: ranks that
/// disagree on a size get an error instead of computing with what is left in the buffer.
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
  static constexpr std::size_t largest = std::size_t{1} << 30;
  void* known(const std::byte* memory) const;  // as MPI knows it
  void check_lengths() const;

  Wire wire_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> lengths_;  // of receives; −1 for sends
};

}  // namespace trireme::comm
