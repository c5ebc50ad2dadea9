#include "trireme/core/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Error, FormatsItsLine) {
  EXPECT_STREQ(Error("{} and {}", 1, "two").what(), "1 and two");
  EXPECT_STREQ(ConfigError("model.heads", "5", "must divide 48", "use 4 or 6").what(),
               "model.heads = 5: must divide 48; use 4 or 6");
}

TEST(Error, AConfigErrorIsAgreed) {
  EXPECT_THROW(throw ConfigError("a", "b", "c", "d"), AgreedError);
  EXPECT_THROW(throw AgreedError("a"), Error);
}

TEST(Error, AFailedAssertionNamesPlaceAndCondition) {
  const int rows = 3;
  TRIREME_ASSERT(rows == 3, "rows {}", rows);
  try {
    TRIREME_ASSERT(rows == 4, "rows {}", rows);
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("error_test.cpp:"));
    EXPECT_THAT(error.what(), testing::HasSubstr("rows == 4: rows 3"));
  }
}

}  // namespace
}  // namespace trireme
