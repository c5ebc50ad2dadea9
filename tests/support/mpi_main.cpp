// Entry point of the MPI test programs. Every rank runs every test; rank 0 prints. A failing rank
// prints its failure and fails the launch. With --gtest_fail_fast (or GTEST_FAIL_FAST=1) all ranks
// end after the first test that fails on any of them. An exception that leaves a test on one rank
// ends the launch: the other ranks would wait for that rank.
#include <gtest/gtest.h>
#include <mpi.h>

namespace {

class RankPrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("[rank %d] %s:%d: %s\n", rank, result.file_name(), result.line_number(),
           result.summary());
    fflush(stdout);
  }
};

class FailTogether : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    const int failed = test.result()->Failed();
    int any = 0;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (any != 0 && failed == 0) ADD_FAILURE() << "this test failed on another rank";
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(catch_exceptions, false);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided != MPI_THREAD_MULTIPLE) {
    printf("this MPI has no MPI_THREAD_MULTIPLE\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankPrinter);
  if (GTEST_FLAG_GET(fail_fast)) listeners.Append(new FailTogether);
  int failed = RUN_ALL_TESTS();
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
