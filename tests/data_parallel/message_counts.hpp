// Messages counted at MPI's profiling interface, which a program can define once.
#pragma once

#include <cstdint>

namespace trireme::data_parallel::test {

/// Messages that this rank has passed to MPI_Isend so far. Defined in averaging_mpi.cpp.
std::int64_t messages_sent();

}  // namespace trireme::data_parallel::test
