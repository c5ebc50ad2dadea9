// A set of nonblocking messages, tested together.
#pragma once

#include <cstddef>
#include <vector>

#include <mpi.h>

namespace trireme::comm {

/// Messages of one operation, in bytes (MPI has no bf16), cut where they exceed 1 GiB, since counts
/// are ints. Receives must come out exactly as long as they were posted: ranks that disagree on a
/// size are told so instead of computing with what is left in the buffer.
class Requests {
 public:
  explicit Requests(MPI_Comm comm) : comm_(comm) {}
  Requests(Requests&& other) noexcept;
  Requests& operator=(Requests&& other) = delete;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  void send(const std::byte* data, std::size_t bytes, int peer, int tag);
  void receive(std::byte* data, std::size_t bytes, int peer, int tag);
  /// True once all are finished; then the set is empty.
  bool test();

 private:
  static constexpr std::size_t largest = std::size_t{1} << 30;
  void check_lengths() const;

  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> lengths_;  // of receives; −1 for sends
};

}  // namespace trireme::comm
