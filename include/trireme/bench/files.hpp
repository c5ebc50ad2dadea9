// Files: reading a dataset as training does, and writing and reading back a file as large as a
// rank's part of a checkpoint.
#pragma once

#include <filesystem>

#include "trireme/bench/measure.hpp"
#include "trireme/bench/sheet.hpp"

namespace trireme::bench {

struct FileOptions {
  std::filesystem::path folder;   // where files are written; a folder of ours is made inside
  std::int64_t bytes = 64 << 20;  // of each rank's file
  std::filesystem::path dataset;  // empty: none is read
  std::int64_t length = 256, sequences = 8;  // of the micro-batches read
  Rounds rounds;
};

/// Every rank has files of its own, all at once; collective over the world. What is read is
/// compared by hash with what was written. Leaves nothing behind, also where it throws.
void bench_files(const Place& place, const FileOptions& options, Sheet& sheet);

}  // namespace trireme::bench
