#include "trireme/core/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "trireme/core/error.hpp"

namespace trireme {
namespace {

TEST(AddressSpace, IsAskedForOnlyWhereItIsLimited) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer maps terabytes";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_NO_THROW(require_address_space(std::size_t{1} << 60, "a library"));
  }
  rlimit limit = before;
  limit.rlim_cur = rlim_t{64} << 30;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_NO_THROW(require_address_space(std::size_t{1} << 20, "a library"));
  try {
    require_address_space(std::size_t{64} << 30, "a library");
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::StartsWith("memory: ulimit -v allows 65536 MiB, and less than "
                                    "65536 MiB of it are left for a library; raise"));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace trireme
