// Whether a job outlives one of its ranks.
#pragma once

#include <string>
#include <string_view>

#include "trireme/comm/session.hpp"

namespace trireme::comm {

/// Why the launcher would end the whole job when a rank dies, and what keeps it from that, in words
/// that follow "server.tolerate_failures = true: "; empty where survivors are left alone: mpirun of
/// Open MPI with --enable-recovery, or srun to which SLURM_KILL_BAD_EXIT=0 was given. `library` as
/// library_version() says.
std::string survival_complaint(std::string_view library, const Variables& variable);

}  // namespace trireme::comm
