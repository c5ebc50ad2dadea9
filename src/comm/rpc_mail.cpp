#include <algorithm>
#include <mutex>
#include <utility>

#include "trireme/comm/session.hpp"

#include "rpc_service.hpp"

namespace trireme::comm::rpc {
namespace {
constexpr int message_tag = 0;
constexpr int messages_at_once = 64;  // looked for in one poll, so that transfers get their turn
}  // namespace

Mail::Mail(MPI_Comm parent, std::function<void(int peer, const Bytes& message)> received,
           std::function<void(int peer, const std::string& why)> broken)
    : received_(std::move(received)), broken_callback_(std::move(broken)) {
  wire_.whole = true;
  mpi_check(MPI_Comm_dup(parent, &wire_.comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm(), MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(comm(), &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm(), &size_), "MPI_Comm_size");
  incoming_.resize(static_cast<std::size_t>(size_));
  given_up_peers_.resize(static_cast<std::size_t>(size_));
}

Mail::~Mail() {
  for (int peer = 0; peer < size_; ++peer) {
    if (!idle(peer) || !incoming_[static_cast<std::size_t>(peer)].empty()) give_up(peer);
  }
  if (!given_up_.empty()) {
    // What MPI may still write to, until the process ends; static destructors leave it alone.
    static std::mutex mutex;
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory nothing is left to save
    static auto* const kept = new std::list<Transfer>;
    const std::lock_guard lock(mutex);
    kept->splice(kept->end(), given_up_);
  }
  // A communicator with a dead rank is not freed.
  const bool all_well = std::none_of(given_up_peers_.begin(), given_up_peers_.end(),
                                     [](bool given_up) { return given_up; });
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (all_well && finalized == 0) MPI_Comm_free(&wire_.comm);
}

void Mail::start(Transfer transfer, const std::function<void(Transfer&)>& post) {
  Transfer& own = transfers_.emplace_back(std::move(transfer));
  try {
    post(own);
  } catch (const Error& error) {
    broken_.emplace_back(own.peer, error.what());
  }
}

void Mail::send(int peer, Bytes message, Done done) {
  // A longer one would be cut into pieces, of which the receiver expects none here.
  TRIREME_ASSERT(message.size() <= std::size_t{1} << 30, "rpc: a message of {} bytes",
                 message.size());
  start({peer, Requests(wire_), std::move(message), std::move(done)}, [](Transfer& transfer) {
    transfer.requests.send(transfer.own.data(), transfer.own.size(), transfer.peer, message_tag);
  });
}

void Mail::send_bulk(int peer, int tag, std::span<const std::byte> bulk, Done done) {
  start({peer, Requests(wire_), {}, std::move(done)},
        [&](Transfer& transfer) { transfer.requests.send(bulk.data(), bulk.size(), peer, tag); });
}

void Mail::receive_bulk(int peer, int tag, std::span<std::byte> memory, Done done) {
  start({peer, Requests(wire_), {}, std::move(done)}, [&](Transfer& transfer) {
    transfer.requests.receive(memory.data(), memory.size(), peer, tag);
  });
}

void Mail::drain_bulk(int peer, int tag, std::size_t bytes) {
  start({peer, Requests(wire_), Bytes(bytes), {}}, [&](Transfer& transfer) {
    transfer.requests.receive(transfer.own.data(), bytes, peer, tag);
  });
}

bool Mail::idle(int peer) const {
  return std::none_of(transfers_.begin(), transfers_.end(),
                      [peer](const Transfer& transfer) { return transfer.peer == peer; });
}

bool Mail::poll() {
  const bool arrived = look_for_messages();
  const bool moved = test_transfers();
  const bool delivered = deliver();
  for (const auto& [peer, why] : std::exchange(broken_, {})) broken_callback_(peer, why);
  return arrived || moved || delivered;
}

bool Mail::finished(Transfer& transfer) {
  try {
    return transfer.requests.test();
  } catch (const Error& error) {
    broken_.emplace_back(transfer.peer, error.what());
    return false;
  }
}

bool Mail::look_for_messages() {
  bool any = false;
  for (int i = 0; i < messages_at_once; ++i) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    mpi_check(MPI_Improbe(MPI_ANY_SOURCE, message_tag, comm(), &found, &message, &status),
              "MPI_Improbe");
    if (found == 0) break;
    any = true;
    int bytes = 0;
    mpi_check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    const int peer = status.MPI_SOURCE;
    Transfer& incoming = incoming_[static_cast<std::size_t>(peer)].emplace_back(
        Transfer{peer, Requests(wire_), Bytes(static_cast<std::size_t>(bytes)), {}});
    // A long message is still with its sender, who may die: it is not waited for.
    try {
      incoming.requests.receive(message, incoming.own.data(), bytes);
    } catch (const Error& error) {
      broken_.emplace_back(peer, error.what());
    }
  }
  return any;
}

bool Mail::test_transfers() {
  std::vector<Done> over;
  bool moved = false;
  for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
    if (!finished(*transfer)) {
      ++transfer;
      continue;
    }
    moved = true;
    if (transfer->done) over.push_back(std::move(transfer->done));
    transfer = transfers_.erase(transfer);
  }
  for (const Done& done : over) done(true);
  return moved;
}

bool Mail::deliver() {
  bool any = false;
  for (int peer = 0; peer < size_; ++peer) {
    auto& queue = incoming_[static_cast<std::size_t>(peer)];
    while (!queue.empty() && finished(queue.front())) {
      const Bytes message = std::move(queue.front().own);
      queue.pop_front();
      any = true;
      if (!given_up_peers_[static_cast<std::size_t>(peer)]) received_(peer, message);
    }
  }
  return any;
}

void Mail::give_up(int peer) {
  given_up_peers_[static_cast<std::size_t>(peer)] = true;
  std::vector<Done> unfinished;
  for (auto next = transfers_.begin(); next != transfers_.end();) {
    const auto transfer = next++;
    if (transfer->peer != peer) continue;
    if (transfer->done) unfinished.push_back(std::exchange(transfer->done, {}));
    given_up_.splice(given_up_.end(), transfers_, transfer);
  }
  given_up_.splice(given_up_.end(), incoming_[static_cast<std::size_t>(peer)]);
  for (const Done& done : unfinished) done(false);
}

}  // namespace trireme::comm::rpc
