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
      lengths_(std::exchange(other.lengths_, {})) {}

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
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(largest, bytes - done);
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
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(largest, bytes - done);
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

bool Requests::test() {
  if (requests_.empty()) return true;
  int finished = 0;
  statuses_.resize(requests_.size());
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &finished,
                               statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) mpi_check(status.MPI_ERROR, "MPI_Testall");
    }
  }
  mpi_check(code, "MPI_Testall");
  if (finished == 0) return false;
  check_lengths();
  requests_.clear();
  lengths_.clear();
  return true;
}

void Requests::check_lengths() const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (lengths_[i] < 0) continue;
    int received = 0;
    mpi_check(MPI_Get_count(&statuses_[i], MPI_BYTE, &received), "MPI_Get_count");
    if (received != lengths_[i]) {
      throw Error(
          "communication: {} bytes arrived from rank {} of the group where {} were expected: "
          "ranks must agree on every size",
          received, statuses_[i].MPI_SOURCE, lengths_[i]);
    }
  }
}

}  // namespace trireme::comm
