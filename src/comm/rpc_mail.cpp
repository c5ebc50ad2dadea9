#include "rpc_mail.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "trireme/comm/session.hpp"

namespace trireme::comm::rpc {
namespace {
constexpr int message_tag = 0;
constexpr int messages_at_once = 64;  // looked for in one poll, so that transfers get their turn

/// Bulk is cut alike on both sides.
template <class Post>
void for_pieces(std::size_t bytes, std::size_t piece, Post&& post) {
  for (std::size_t at = 0; at < bytes; at += piece) post(at, std::min(piece, bytes - at));
}

/// The code of the first request that failed, after MPI_Testall.
int code_of(int code, std::span<const MPI_Status> statuses) {
  if (code != MPI_ERR_IN_STATUS) return code;
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
      return status.MPI_ERROR;
    }
  }
  return MPI_SUCCESS;
}

/// What MPI may still write to, until the process ends; static destructors leave it alone.
template <class Transfer>
void keep_for_ever(std::vector<Transfer> transfers) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::vector<Transfer>>;
  if (transfers.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  all->push_back(std::move(transfers));
}

}  // namespace

Mail::Mail(MPI_Comm parent, std::size_t piece, Callbacks callbacks)
    : callbacks_(std::move(callbacks)), piece_(piece) {
  mpi_check(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  incoming_.resize(static_cast<std::size_t>(size_));
  given_up_peers_.resize(static_cast<std::size_t>(size_));
}

Mail::~Mail() {
  for (int peer = 0; peer < size_; ++peer) {
    if (!idle(peer) || !incoming_[static_cast<std::size_t>(peer)].empty()) give_up(peer);
  }
  // A communicator with a dead rank is not freed.
  keep_for_ever(std::move(given_up_));
  const bool all_well = std::none_of(given_up_peers_.begin(), given_up_peers_.end(),
                                     [](bool given_up) { return given_up; });
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (all_well && finalized == 0) MPI_Comm_free(&comm_);
}

void Mail::send(int peer, Bytes message, Done done) {
  if (peer != rank_) {
    ++sent_.messages;
    sent_.message_bytes += static_cast<std::int64_t>(message.size());
  }
  Transfer transfer{peer, {MPI_REQUEST_NULL}, std::move(message), std::move(done)};
  const int code = MPI_Isend(transfer.own.data(), static_cast<int>(transfer.own.size()), MPI_BYTE,
                             peer, message_tag, comm_, transfer.requests.data());
  note_broken(peer, code, "MPI_Isend");
  transfers_.push_back(std::move(transfer));
}

void Mail::send_bulk(int peer, int tag, std::span<const std::byte> bulk, Done done) {
  if (peer != rank_) sent_.bulk_bytes += static_cast<std::int64_t>(bulk.size());
  Transfer transfer{peer, {}, {}, std::move(done)};
  for_pieces(bulk.size(), piece_, [&](std::size_t at, std::size_t bytes) {
    transfer.requests.push_back(MPI_REQUEST_NULL);
    const int code = MPI_Isend(bulk.data() + at, static_cast<int>(bytes), MPI_BYTE, peer, tag,
                               comm_, &transfer.requests.back());
    note_broken(peer, code, "MPI_Isend");
  });
  transfers_.push_back(std::move(transfer));
}

void Mail::post_receives(Transfer& transfer, std::span<std::byte> memory, int tag,
                         std::size_t piece) {
  for_pieces(memory.size(), piece, [&](std::size_t at, std::size_t bytes) {
    transfer.requests.push_back(MPI_REQUEST_NULL);
    const int code = MPI_Irecv(memory.data() + at, static_cast<int>(bytes), MPI_BYTE, transfer.peer,
                               tag, comm_, &transfer.requests.back());
    note_broken(transfer.peer, code, "MPI_Irecv");
  });
}

void Mail::receive_bulk(int peer, int tag, std::span<std::byte> memory, std::size_t piece,
                        Done done) {
  Transfer transfer{peer, {}, {}, std::move(done)};
  post_receives(transfer, memory, tag, piece);
  transfers_.push_back(std::move(transfer));
}

void Mail::drain_bulk(int peer, int tag, std::size_t bytes, std::size_t piece) {
  Transfer transfer{peer, {}, Bytes(bytes), {}};
  post_receives(transfer, transfer.own, tag, piece);
  transfers_.push_back(std::move(transfer));
}

bool Mail::idle(int peer) const {
  return std::none_of(transfers_.begin(), transfers_.end(),
                      [peer](const Transfer& transfer) { return transfer.peer == peer; });
}

bool Mail::poll() {
  const bool arrived = look_for_messages();
  const bool moved = test_transfers();
  const bool delivered = deliver();
  report_broken();
  return arrived || moved || delivered;
}

bool Mail::look_for_messages() {
  bool any = false;
  for (int i = 0; i < messages_at_once; ++i) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    mpi_check(MPI_Improbe(MPI_ANY_SOURCE, message_tag, comm_, &found, &message, &status),
              "MPI_Improbe");
    if (found == 0) break;
    any = true;
    int bytes = 0;
    mpi_check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    auto& queue = incoming_[static_cast<std::size_t>(status.MPI_SOURCE)];
    Incoming& incoming =
        queue.emplace_back(Incoming{Bytes(static_cast<std::size_t>(bytes)), MPI_REQUEST_NULL});
    // A long message is still with its sender, who may die: it is not waited for.
    const int code =
        MPI_Imrecv(incoming.message.data(), bytes, MPI_BYTE, &message, &incoming.request);
    note_broken(status.MPI_SOURCE, code, "MPI_Imrecv");
  }
  return any;
}

bool Mail::test_transfers() {
  std::vector<Done> finished;
  std::vector<MPI_Status> statuses;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    int done = 0;
    statuses.resize(transfer.requests.size());
    const int code = MPI_Testall(static_cast<int>(transfer.requests.size()),
                                 transfer.requests.data(), &done, statuses.data());
    note_broken(transfer.peer, code_of(code, statuses), "MPI_Testall");
    if (code == MPI_SUCCESS && done != 0) {
      if (transfer.done) finished.push_back(std::move(transfer.done));
      continue;
    }
    if (kept != i) transfers_[kept] = std::move(transfer);
    ++kept;
  }
  const bool moved = kept < transfers_.size();
  transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(kept), transfers_.end());
  for (const Done& done : finished) done(true);
  return moved;
}

bool Mail::deliver() {
  bool any = false;
  for (int peer = 0; peer < size_; ++peer) {
    auto& queue = incoming_[static_cast<std::size_t>(peer)];
    while (!queue.empty()) {
      int done = 0;
      const int code = MPI_Test(&queue.front().request, &done, MPI_STATUS_IGNORE);
      note_broken(peer, code, "MPI_Test");
      if (code != MPI_SUCCESS || done == 0) break;
      Bytes message = std::move(queue.front().message);
      queue.pop_front();
      any = true;
      if (!given_up_peers_[static_cast<std::size_t>(peer)]) {
        callbacks_.received(peer, std::move(message));
      }
    }
  }
  return any;
}

void Mail::give_up(int peer) {
  given_up_peers_[static_cast<std::size_t>(peer)] = true;
  const auto first =
      std::stable_partition(transfers_.begin(), transfers_.end(),
                            [peer](const Transfer& transfer) { return transfer.peer != peer; });
  std::vector<Done> unfinished;
  for (auto transfer = first; transfer != transfers_.end(); ++transfer) {
    if (transfer->done) unfinished.push_back(std::move(transfer->done));
    given_up_.push_back(std::move(*transfer));
  }
  transfers_.erase(first, transfers_.end());
  for (Incoming& incoming : incoming_[static_cast<std::size_t>(peer)]) {
    given_up_.push_back({peer, {incoming.request}, std::move(incoming.message), {}});
  }
  incoming_[static_cast<std::size_t>(peer)].clear();
  for (const Done& done : unfinished) done(false);
}

void Mail::note_broken(int peer, int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  try {
    mpi_check(code, call);
  } catch (const Error& error) {
    broken_.emplace_back(peer, error.what());
  }
}

void Mail::report_broken() {
  for (const auto& [peer, why] : std::exchange(broken_, {})) callbacks_.broken(peer, why);
}

}  // namespace trireme::comm::rpc
