#include "trireme/state/buckets.hpp"

#include <algorithm>

namespace trireme::state {

std::vector<Bucket> plan_buckets(const params::ParameterTable& table, int units,
                                 std::int64_t elements) {
  TRIREME_ASSERT(elements > 0, "buckets of {} elements", elements);
  std::vector<Bucket> buckets;
  std::int64_t end = table.flat_elements();  // everything from here on is in a bucket
  for (int unit = units - 1; unit >= 0; --unit) {
    const std::int64_t begin = table.unit_range(unit).begin;
    if (end - begin < elements && unit > 0) continue;
    while (end > begin) {
      const std::int64_t from = std::max(begin, end - elements);
      buckets.push_back({from, end, unit});
      end = from;
    }
  }
  return buckets;
}

}  // namespace trireme::state
