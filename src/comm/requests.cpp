#include "requests.hpp"

#include <algorithm>
#include <utility>

#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {

Requests::Requests(Requests&& other) noexcept
    : wire_(other.wire_),
      requests_(std::exchange(other.requests_, {})),
      statuses_(std::exchange(other.statuses_, {})),
      indices_(std::exchange(other.indices_, {})),
      lengths_(std::exchange(other.lengths_, {})),
      ended_(std::exchange(other.ended_, 0)) {}

Requests::~Requests() {
  // Messages are under way here only after an error, which ends the run.
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

void* Requests::known(const std::byte* memory) const {
  auto* own = const_cast<std::byte*>(memory);  // NOLINT: an address; sends write nothing
  return wire_.address != nullptr && *wire_.address ? (*wire_.address)(own) : own;
}

void Requests::send(const std::byte* data, std::size_t bytes, int peer, int tag) {
  const std::size_t piece = piece_of(bytes);
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(piece, bytes - done);
    requests_.push_back(MPI_REQUEST_NULL);
    lengths_.push_back(-1);
    mpi_check(MPI_Isend(known(data + done), static_cast<int>(part), MPI_BYTE, peer,
                        wire_.first_tag + tag, wire_.comm, &requests_.back()),
              "MPI_Isend");
    if (wire_.sent != nullptr) *wire_.sent += static_cast<std::int64_t>(part);
    done += part;
  } while (done < bytes);
}

void Requests::receive(std::byte* data, std::size_t bytes, int peer, int tag) {
  const std::size_t piece = piece_of(bytes);
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(piece, bytes - done);
    requests_.push_back(MPI_REQUEST_NULL);
    lengths_.push_back(static_cast<int>(part));
    mpi_check(MPI_Irecv(known(data + done), static_cast<int>(part), MPI_BYTE, peer,
                        wire_.first_tag + tag, wire_.comm, &requests_.back()),
              "MPI_Irecv");
    done += part;
  } while (done < bytes);
}

void Requests::receive(MPI_Message& message, std::byte* data, int bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  lengths_.push_back(bytes);
  mpi_check(MPI_Imrecv(data, bytes, MPI_BYTE, &message, &requests_.back()), "MPI_Imrecv");
}

std::size_t Requests::piece_of(std::size_t bytes) const {
  constexpr std::size_t largest = std::size_t{1} << 30, most_pieces = 128;
  if (wire_.whole) return largest;
  if (bytes <= largest_piece) return largest_piece;
  // The last piece is shorter than the others, so that of two sizes some piece differs, which the
  // receiver sees; but for a size of one piece, and a greater one that begins with as much.
  const std::size_t even = (bytes / most_pieces / 64 + 1) * 64;
  const std::size_t piece = std::clamp(even, largest_piece - 64, largest);
  return bytes % piece == 0 ? piece - 64 : piece;
}

bool Requests::test() {
  if (requests_.empty()) return true;
  int ended = 0;
  statuses_.resize(requests_.size());
  indices_.resize(requests_.size());
  // Not MPI_Testall: a piece of a wrong length may be the last that arrives.
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &ended,
                                indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < ended; ++i) {
      mpi_check(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "MPI_Testsome");
    }
  }
  mpi_check(code, "MPI_Testsome");
  for (int i = 0; i < ended; ++i) {
    const auto at = static_cast<std::size_t>(i);
    check_length(statuses_[at], lengths_[static_cast<std::size_t>(indices_[at])]);
  }
  ended_ += static_cast<std::size_t>(std::max(ended, 0));
  if (ended_ < requests_.size()) return false;
  requests_.clear();
  lengths_.clear();
  ended_ = 0;
  return true;
}

void Requests::check_length(const MPI_Status& status, int expected) {
  if (expected < 0) return;
  int received = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
  if (received != expected) {
    throw Error(
        "communication: {} bytes arrived from rank {} of the group where {} were expected: "
        "ranks must agree on every size",
        received, status.MPI_SOURCE, expected);
  }
}

}  // namespace trireme::comm
