// The processor cores that ranks of a node may use, by the masks that launchers and schedulers set.
#pragma once

#include <string>

#include <mpi.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

/// One line, with the remedy, where some rank's `threads` threads and as many of each rank that may
/// use the same cores are more than these cores; else empty. The same on every rank; collective
/// over the session.
std::string core_warning(const Session& session, int threads);

}  // namespace trireme::comm
