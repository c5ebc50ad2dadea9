#include "trireme/state/buckets.hpp"

#include <gtest/gtest.h>

#include "trireme/model/transformer.hpp"

#include "support/batches.hpp"

namespace trireme::state {
namespace {

TEST(Buckets, CoverTheBufferOnceInOrderOfReadiness) {
  for (const bool llama : {false, true}) {
    const model::Transformer model(testing_support::odd_model(llama));
    const auto units = static_cast<int>(model.units().size());
    for (const std::int64_t elements : {1, 100, 1000, 5000, 1'000'000}) {
      const auto buckets = plan_buckets(model.table(), units, elements);
      std::int64_t end = model.table().flat_elements();
      int unit = units;
      for (const Bucket& bucket : buckets) {
        EXPECT_EQ(bucket.end, end);
        EXPECT_LT(bucket.begin, bucket.end);
        EXPECT_LE(bucket.after_unit, unit);
        // Ready means: every unit whose parameters lie here has finished, so has every unit after
        // it.
        EXPECT_LE(bucket.begin, bucket.end);
        EXPECT_GE(bucket.begin, model.table().unit_range(bucket.after_unit).begin);
        end = bucket.begin;
        unit = bucket.after_unit;
      }
      EXPECT_EQ(end, 0);
    }
  }
}

}  // namespace
}  // namespace trireme::state
