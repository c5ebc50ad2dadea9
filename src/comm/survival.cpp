#include "trireme/comm/survival.hpp"

#include <fmt/format.h>

namespace trireme::comm {

std::string survival_complaint(std::string_view library, const Variables& variable) {
  const auto is = [&](const char* name, std::string_view value) {
    const char* found = variable(name);
    return found != nullptr && found == value;
  };
  if (!library.starts_with("Open MPI")) {
    return fmt::format("{} ends the job when a rank dies; use Open MPI's mpirun --enable-recovery",
                       library);
  }
  // mpirun tells its processes so, also inside a Slurm job.
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
