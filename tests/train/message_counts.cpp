// For LD_PRELOAD: counts what a rank's messages, splits and collectives are over a whole run, by
// MPI's profiling interface. When MPI ends, rank 0 prints the ranks, the most messages that one
// sent, the least and the most bytes that one received, splits and collectives.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>

#include <mpi.h>

namespace {

enum Count : int { sent, received_bytes, splits, collectives, counts };
std::array<std::atomic<std::int64_t>, counts> own{};

std::int64_t bytes_of(int count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return std::int64_t{count} * size;
}

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  ++own[sent];
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  own[received_bytes] += bytes_of(count, type);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Imrecv(void* data, int count, MPI_Datatype type, MPI_Message* message,
               MPI_Request* request) {
  own[received_bytes] += bytes_of(count, type);
  return PMPI_Imrecv(data, count, type, message, request);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  ++own[splits];
  return PMPI_Comm_split(comm, color, key, made);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  ++own[splits];
  return PMPI_Comm_split_type(comm, type, key, info, made);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  ++own[splits];
  return PMPI_Comm_dup(comm, made);
}
int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* to, int each,
                  MPI_Datatype as, MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  own[received_bytes] += size * bytes_of(each, as);
  ++own[collectives];
  return PMPI_Allgather(from, count, type, to, each, as, comm);
}
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm comm) {
  own[received_bytes] += bytes_of(count, type);
  ++own[collectives];
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  own[received_bytes] += bytes_of(count, type);
  ++own[collectives];
  return PMPI_Bcast(data, count, type, root, comm);
}
int MPI_Barrier(MPI_Comm comm) {
  ++own[collectives];
  return PMPI_Barrier(comm);
}

int MPI_Finalize() {
  int rank = 0, size = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &size);
  std::array<std::int64_t, counts> mine{}, most{};
  for (int i = 0; i < counts; ++i) mine[i] = own[i];
  std::int64_t least = 0;
  PMPI_Reduce(mine.data(), most.data(), counts, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
  PMPI_Reduce(&mine[received_bytes], &least, 1, MPI_INT64_T, MPI_MIN, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::fprintf(stderr, "counts: %d %lld %lld %lld %lld %lld\n", size,
                 static_cast<long long>(most[sent]), static_cast<long long>(least),
                 static_cast<long long>(most[received_bytes]), static_cast<long long>(most[splits]),
                 static_cast<long long>(most[collectives]));
  }
  return PMPI_Finalize();
}

}  // extern "C"
