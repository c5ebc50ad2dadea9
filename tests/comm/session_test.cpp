#include "trireme/comm/session.hpp"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

namespace trireme::comm {
namespace {

using Environment = std::map<std::string, std::string>;

Variables variables(const Environment& environment) {
  return [&environment](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

std::string complaint(int world, const Environment& environment) {
  return launcher_complaint(world, variables(environment));
}

TEST(Launcher, UnconnectedRanksAreReported) {
  const Environment step = {{"SLURM_NTASKS", "4"},
                            {"SLURM_PROCID", "2"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "4"}};
  EXPECT_THAT(complaint(1, step), testing::HasSubstr("--mpi=pmix"));
  EXPECT_THAT(complaint(1, step), testing::HasSubstr("4 processes"));
  EXPECT_THAT(complaint(1, {{"OMPI_COMM_WORLD_SIZE", "2"}}), testing::HasSubstr("OMPI_COMM"));
  EXPECT_THAT(complaint(1, {{"PMI_SIZE", "3"}}), testing::HasSubstr("PMI_SIZE = 3"));
}

TEST(Launcher, LegitimateStartsAreNot) {
  EXPECT_EQ(complaint(1, {}), "");
  EXPECT_EQ(complaint(4, {{"PMI_SIZE", "4"}}), "");
  EXPECT_EQ(complaint(1, {{"PMI_SIZE", "1"}}), "");
  // Inside a batch script, but not started by srun.
  EXPECT_EQ(complaint(1, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), "");
  // One rank by mpirun, whose daemons are the tasks of a step.
  EXPECT_EQ(complaint(1, {{"OMPI_COMM_WORLD_SIZE", "1"},
                          {"SLURM_PROCID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "2"}}),
            "");
  // An interactive step of one task.
  EXPECT_EQ(complaint(1, {{"SLURM_NTASKS", "4"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_STEP_ID", "4294967290"},
                          {"SLURM_STEP_NUM_TASKS", "1"}}),
            "");
}

TEST(Launcher, StepsWithoutPmiAreRefusedBeforeMpiStarts) {
  const auto start = [](const Environment& environment, const char* library = "Open MPI 4.1.4") {
    return start_complaint(library, variables(environment));
  };
  Environment step = {{"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  EXPECT_THAT(start(step), testing::HasSubstr("use srun --mpi=pmix"));
  EXPECT_THAT(start(step), testing::HasSubstr("4 processes"));
  EXPECT_EQ(start(step, "MPICH 4.0.2, MPI 4.0"), "");  // its libpmi may work
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    Environment connected = step;
    connected[name] = "2";
    EXPECT_EQ(start(connected), "") << name;
  }
  step["SLURM_STEP_NUM_TASKS"] = "1";  // a shell in an allocation is a step too
  EXPECT_EQ(start(step), "");
  EXPECT_EQ(start({}), "");
  EXPECT_EQ(start({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), "");  // a batch script
}

TEST(Session, LibraryVersionNamesLibraryAndStandard) {
  EXPECT_THAT(library_version(),
              testing::ContainsRegex("^[A-Z].* [0-9]+\\.[0-9.]+.*, MPI [34]\\.[0-9]$"));
}

TEST(Session, ErrorsCarryTheCall) {
  EXPECT_NO_THROW(mpi_check(MPI_SUCCESS, "MPI_Barrier"));
  try {
    mpi_check(MPI_ERR_TRUNCATE, "MPI_Recv");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("MPI_Recv: "));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace trireme::comm
