// Copies: how fast memory is, of the host by threads, of a device, and between the two.
#pragma once

#include "trireme/bench/collectives.hpp"

namespace trireme::bench {

struct CopyOptions {
  Sizes sizes{.begin = 1 << 16, .end = 1 << 28, .factor = 16};
  std::vector<std::int64_t> threads;  // of the host's copies
  Rounds rounds;
};

/// Every rank copies memory of its own, all at once; collective over the world. Bandwidths count
/// bytes read and bytes written, but between host and device each byte once.
void bench_copies(const Place& place, const CopyOptions& options, Sheet& sheet);

}  // namespace trireme::bench
