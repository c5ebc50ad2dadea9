// What the environment of a launcher (mpirun, srun) shows about how a process was started.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace trireme::comm {

/// An environment variable's value, null when it is unset.
using Variables = std::function<const char*(const char*)>;

/// Whether a launcher started this process.
bool has_launcher(const Variables& variable);

/// What is wrong when a world of `world` ranks was started by a launcher whose environment has
/// more; empty when nothing is. A batch script outside any job step is fine.
std::string launcher_complaint(int world, const Variables& variable);

/// The same before MPI_Init, where that would end the process with an error of its own: Open MPI in
/// a job step of several tasks to which Slurm gave no PMI (srun --mpi=none). `library` as from
/// library_version(). MPICH may connect through Slurm's own libpmi, which needs no variable.
std::string start_complaint(std::string_view library, const Variables& variable);

/// The rank that the launcher's environment gives this process, 0 where it gives none: which of
/// several unconnected processes is to print the complaint.
int launcher_rank();

/// Why the launcher would end the whole job when a rank dies, and what keeps it from that, to
/// follow "server.tolerate_failures = true: "; empty where survivors are left alone: mpirun of Open
/// MPI with --enable-recovery, or srun to which SLURM_KILL_BAD_EXIT=0 was given. `library` as from
/// library_version().
std::string survival_complaint(std::string_view library, const Variables& variable);

}  // namespace trireme::comm
