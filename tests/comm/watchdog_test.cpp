#include "trireme/comm/watchdog.hpp"

#include <gtest/gtest.h>

namespace trireme::comm {
namespace {

TEST(Watchdog, TableHasTheLongestSilenceFirst) {
  EXPECT_EQ(watchdog_table({{0, 12, 0.26, "all-reduce of data", ""},
                            {11, 11, 300.04, "backward of block 3", "stopped"},
                            {2, -1, 0.5, "start", ""}}),
            "    rank     step  seconds ago  last operation\n"
            "      11       11        300.0  backward of block 3 (stopped)\n"
            "       2        -          0.5  start\n"
            "       0       12          0.3  all-reduce of data\n");
}

}  // namespace
}  // namespace trireme::comm
