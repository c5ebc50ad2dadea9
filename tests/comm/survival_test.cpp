#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/session.hpp"

namespace trireme::comm {
namespace {

std::string complaint(const std::map<std::string, std::string>& variables,
                      const char* library = "Open MPI 4.1.4, MPI 3.1") {
  return survival_complaint(library, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Survival, NeedsALauncherThatKeepsSurvivors) {
  using testing::HasSubstr;
  EXPECT_EQ(complaint({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_MCA_orte_enable_recovery", "1"}}), "");
  EXPECT_THAT(complaint({{"OMPI_COMM_WORLD_SIZE", "4"}}), HasSubstr("mpirun --enable-recovery"));
  EXPECT_THAT(complaint({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_MCA_orte_enable_recovery", "0"}}),
              HasSubstr("mpirun --enable-recovery"));
  // mpirun inside a job step: mpirun's setting counts.
  EXPECT_THAT(
      complaint(
          {{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_KILL_BAD_EXIT", "0"}}),
      HasSubstr("mpirun --enable-recovery"));
  EXPECT_EQ(complaint({{"SLURM_STEP_ID", "0"}, {"SLURM_KILL_BAD_EXIT", "0"}}), "");
  EXPECT_THAT(complaint({{"SLURM_STEP_ID", "0"}}), HasSubstr("--kill-on-bad-exit=0"));
  EXPECT_THAT(complaint({{"SLURM_STEP_ID", "0"}, {"SLURM_KILL_BAD_EXIT", "1"}}),
              HasSubstr("--kill-on-bad-exit=0"));
  EXPECT_THAT(complaint({}), HasSubstr("launcher"));
  EXPECT_THAT(complaint({{"OMPI_MCA_orte_enable_recovery", "1"}}, "MPICH 4.0.2, MPI 4.0"),
              HasSubstr("MPICH 4.0.2"));
}

}  // namespace
}  // namespace trireme::comm
