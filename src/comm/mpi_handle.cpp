#include "mpi_handle.hpp"

#include <exception>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

MpiHandle::MpiHandle(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiHandle::~MpiHandle() {
  // Freeing is collective: a rank that fails alone must reach its abort instead.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

int MpiHandle::take_channel() {
  constexpr int largest_tag = 32767;  // the least that MPI_TAG_UB may be (MPI 3.1, 8.1.2)
  const int first = channels_++ * tags_per_channel;
  TRIREME_ASSERT(first + tags_per_channel <= largest_tag, "channel {} of one group", channels_);
  return first;
}

}  // namespace trireme::comm
