#include "trireme/comm/launcher.hpp"

#include <cstdlib>

#include <fmt/format.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {
namespace {

int number(const char* text) { return text == nullptr ? 0 : std::atoi(text); }

/// The world's size by the launcher nearest to the process: inside a job step of Slurm, mpirun may
/// have started a single rank, and then its size counts.
struct Launched {
  const char* variable = nullptr;
  int ranks = 0;
};
Launched launched(const Variables& variable) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE"}) {
    if (variable(name) != nullptr) return {name, number(variable(name))};
  }
  // SLURM_NTASKS is there in a batch script too, where one process alone is legitimate.
  if (variable("SLURM_STEP_ID") != nullptr && variable("SLURM_PROCID") != nullptr) {
    return {"SLURM_STEP_NUM_TASKS", number(variable("SLURM_STEP_NUM_TASKS"))};
  }
  return {};
}

}  // namespace

bool has_launcher(const Variables& variable) { return launched(variable).variable != nullptr; }

std::string launcher_complaint(int world, const Variables& variable) {
  const Launched launcher = launched(variable);
  if (world != 1 || launcher.ranks <= 1) return {};
  const bool slurm = std::string_view(launcher.variable).starts_with("SLURM");
  return fmt::format(
      "launcher: {} = {}: the launcher started {} processes but did not connect them (each is a "
      "world "
      "of one rank); {}",
      launcher.variable, launcher.ranks, launcher.ranks,
      slurm
          ? "try srun --mpi=pmix, or the mpirun of the MPI library that this program is built with"
          : fmt::format(
                "use the mpirun of the MPI library that this program is built with ({}), or "
                "under Slurm try srun --mpi=pmix",
                library_version()));
}

std::string start_complaint(std::string_view library, const Variables& variable) {
  const Launched launcher = launched(variable);
  if (launcher.ranks <= 1 || !std::string_view(launcher.variable).starts_with("SLURM")) return {};
  if (!library.starts_with("Open MPI")) return {};
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"}) {
    if (variable(name) != nullptr) return {};
  }
  return fmt::format(
      "launcher: {} = {}, but no PMIX_RANK: srun started {} processes without what {} connects "
      "them "
      "by; use srun --mpi=pmix (srun --mpi=list names what this Slurm has), or mpirun",
      launcher.variable, launcher.ranks, launcher.ranks, library);
}

int launcher_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return number(value);
  }
  return 0;
}

std::string survival_complaint(std::string_view library, const Variables& variable) {
  const auto is = [&](const char* name, std::string_view value) {
    const char* found = variable(name);
    return found != nullptr && found == value;
  };
  if (!library.starts_with("Open MPI")) {
    return fmt::format("{} ends the job when a rank dies; use Open MPI's mpirun --enable-recovery",
                       library);
  }
  // mpirun sets it for its processes, also inside a Slurm job.
  if (is("OMPI_MCA_orte_enable_recovery", "1")) return {};
  if (variable("OMPI_MCA_orte_hnp_uri") != nullptr || variable("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return "mpirun ends the job when a rank dies; start it with mpirun --enable-recovery";
  }
  if (variable("SLURM_STEP_ID") != nullptr) {
    if (is("SLURM_KILL_BAD_EXIT", "0")) return {};
    return "srun may end the job when a rank dies; start it with SLURM_KILL_BAD_EXIT=0 srun "
           "--kill-on-bad-exit=0";
  }
  return "the launcher may end the job when a rank dies; use mpirun --enable-recovery";
}

}  // namespace trireme::comm
