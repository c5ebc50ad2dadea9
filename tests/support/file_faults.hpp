// Makes one file operation fail. The library interposes on the C library, counts the operations on
// paths that begin with a prefix, and fails one. Programs link and arm it, or set LD_PRELOAD and
// TRIREME_FILE_FAULT.
#pragma once

namespace trireme::test {

enum class Fault : int {
  no_space,     // the call does nothing and fails with ENOSPC
  io_error,     // the same with EIO; a close(2) still closes
  short_write,  // a write(2) or pwrite(2) of two bytes or more writes half of them
  kill,         // SIGKILL before the call
  no_locks,     // flock(2) fails with ENOLCK
};

}  // namespace trireme::test

extern "C" {
/// Counts operations below `prefix` (an absolute path or its beginning) from 1 and fails number
/// `at`, once. Counted: open, close, read, write, fsync, ftruncate, rename, mkdir, unlink, rmdir
/// and variants; short_write counts only writes of two bytes or more, no_locks only flock.
/// TRIREME_FILE_FAULT="no_space|io_error|short_write|kill|no_locks AT PREFIX [RANK]" does the same
/// from the start of a program, on one MPI rank if RANK is given.
void trireme_file_faults_arm(const char* prefix, long at, int fault);
/// Disarms, and returns the number of operations.
long trireme_file_faults_disarm();
/// What failed, "rename /path", or "" if nothing has failed yet.
const char* trireme_file_faults_struck();
}
