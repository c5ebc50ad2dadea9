// One file operation that fails, on purpose. The library of that name stands between a program and
// the C library: it counts the operations on files and folders whose path begins with a given text,
// and makes one of them fail. A program links it and arms it; others are told by LD_PRELOAD and the
// variable TRIREME_FILE_FAULT.
#pragma once

namespace trireme::test {

enum class Fault : int {
  no_space,     // the call does nothing and fails with ENOSPC
  io_error,     // the same with EIO; a close(2) closes all the same
  short_write,  // a write(2) or pwrite(2) of two bytes or more writes half of them
  kill,         // SIGKILL comes ahead of the call
  no_locks,     // flock(2) fails with ENOLCK
};

}  // namespace trireme::test

extern "C" {
/// From now on operations below `prefix` (an absolute path, or the beginning of one) are counted
/// from 1, and number `at` fails, once. Counted are open, close, read, write, fsync, ftruncate,
/// rename, mkdir, unlink, rmdir and their kin; with short_write, writes of two bytes or more alone;
/// with no_locks, flock alone. TRIREME_FILE_FAULT="no_space|io_error|short_write|kill|no_locks AT
/// PREFIX [RANK]" does the same from a program's start, on that rank of an MPI job alone where RANK
/// is given.
void trireme_file_faults_arm(const char* prefix, long at, int fault);
/// Ends that, and returns how many operations there were.
long trireme_file_faults_disarm();
/// What failed, "rename /path", or "" as long as nothing has.
const char* trireme_file_faults_struck();
}
