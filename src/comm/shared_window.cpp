#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "trireme/comm/session.hpp"
#include "trireme/comm/shared.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

constexpr std::size_t alignment = 64;
constexpr const char* folder = "/dev/shm";

/// Bytes free where MPI libraries keep windows; no limit where none is set or known.
std::size_t free_space() {
  struct statvfs space {};
  if (::statvfs(folder, &space) != 0 || space.f_blocks == 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::size_t>(space.f_bavail) * space.f_frsize;
}

std::int64_t reduce(MPI_Comm node, std::size_t value, MPI_Op operation) {
  auto result = static_cast<std::int64_t>(value);
  mpi_check(MPI_Allreduce(MPI_IN_PLACE, &result, 1, MPI_INT64_T, operation, node), "MPI_Allreduce");
  return result;
}

std::byte* aligned_up(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<std::byte*>(memory) + (alignment - address % alignment) % alignment;
}

}  // namespace

std::unique_ptr<SharedWindow> SharedWindow::make(MPI_Comm node, std::size_t bytes,
                                                 device::MemoryLedger& ledger, std::string& why,
                                                 std::optional<std::size_t> space) {
  TRIREME_ASSERT(bytes % alignment == 0, "{} bytes", bytes);
  // Asked first: a library that runs out of memory on one rank may leave the others waiting.
  // Libraries round segments up to pages and keep their own state beside them.
  constexpr std::size_t beside = std::size_t{64} << 10;
  const std::int64_t needed = reduce(node, bytes + beside, MPI_SUM);
  const std::int64_t free = reduce(node, space.value_or(free_space()), MPI_MIN);
  const auto mebibytes = [](std::int64_t n) { return static_cast<double>(n) / (1 << 20); };
  why = fmt::format("{} has {:.1f} MiB free, and the windows of a node's ranks take {:.1f} MiB",
                    folder, mebibytes(free), mebibytes(needed));
  if (needed > free) return nullptr;
  std::unique_ptr<SharedWindow> window(new SharedWindow(node, bytes, ledger));
  // Free space may be taken meanwhile, and touching a missing page kills the process.
  if (reduce(node, window->populate() ? 1 : 0, MPI_MIN) == 0) {
    why = fmt::format(
        "{} had {:.1f} MiB free for the windows of a node's ranks, which take {:.1f} "
        "MiB, but something else took the space meanwhile",
        folder, mebibytes(free), mebibytes(needed));
    return nullptr;
  }
  why.clear();
  return window;
}

SharedWindow::SharedWindow(MPI_Comm node, std::size_t bytes, device::MemoryLedger& ledger)
    : ledger_(ledger), bytes_(bytes) {
  MPI_Info info = MPI_INFO_NULL;
  mpi_check(MPI_Info_create(&info), "MPI_Info_create");
  // Each segment on pages of its own, which are then its owner's in a machine of several sockets.
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  void* base = nullptr;
  const int code = MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + alignment), 1, info, node,
                                           &base, &window_);
  MPI_Info_free(&info);
  mpi_check(code, "MPI_Win_allocate_shared");
  own_ = aligned_up(base);
  int ranks = 0;
  mpi_check(MPI_Comm_size(node, &ranks), "MPI_Comm_size");
  for (int rank = 0; rank < ranks; ++rank) {
    MPI_Aint length = 0;
    int unit = 0;
    mpi_check(MPI_Win_shared_query(window_, rank, &length, &unit, &base), "MPI_Win_shared_query");
    segments_.push_back(aligned_up(base));
  }
  ledger_.add(device::Use::communication, static_cast<std::int64_t>(bytes_));
}

bool SharedWindow::populate() {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14: fails where touching kills
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(own_) % page;  // of the first page
  if (bytes_ == 0) return true;
  if (::madvise(own_ - before, before + bytes_, populate_write) != 0 && errno != EINVAL) {
    return false;
  }
  std::memset(own_, 0, bytes_);
  return true;
}

SharedWindow::~SharedWindow() {
  ledger_.add(device::Use::communication, -static_cast<std::int64_t>(bytes_));
  if (std::uncaught_exceptions() == 0) MPI_Win_free(&window_);
}

}  // namespace trireme::comm
