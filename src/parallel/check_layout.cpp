#include <bit>
#include <numeric>

#include "trireme/core/error.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::parallel {

namespace {

bool power_of_two(std::int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n));
}

/// "8", or "4 or 8" where the powers of two around `value` differ; at least `least`.
std::string powers_near(std::int64_t value, std::int64_t least) {
  const auto below =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max(value, least))));
  if (below < least) return std::to_string(2 * below);
  return below == value ? std::to_string(below) : fmt::format("{} or {}", below, 2 * below);
}

/// `degree`, the value of `key`, divides `virtual_degree`, a power of two.
void check_virtual(const std::string& key, std::int64_t degree, const std::string& virtual_key,
                   std::int64_t virtual_degree) {
  if (!power_of_two(virtual_degree)) {
    throw ConfigError(virtual_key, std::to_string(virtual_degree), "must be a power of two",
                      fmt::format("use {}", powers_near(virtual_degree, 1)));
  }
  if (virtual_degree % degree == 0) return;
  const std::string rule =
      fmt::format("must divide {} = {} with numerics.reproducible", virtual_key, virtual_degree);
  if (power_of_two(degree)) {
    throw ConfigError(
        key, std::to_string(degree), rule,
        fmt::format("use at most {}, or {} = {}", virtual_degree, virtual_key, degree));
  }
  const auto near = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(degree)));
  throw ConfigError(key, std::to_string(degree), rule,
                    fmt::format("use {}", std::min(near, virtual_degree)));
}

void check_sequences(const StageOptions& options) {
  const std::int64_t own = options.micro_batches * options.sequences;
  const std::int64_t batch = own * options.place.data, groups = options.virtual_data;
  if (batch % groups == 0) return;
  // Both the batch's largest power of two and the next larger batch would do.
  const std::int64_t largest = batch & -batch;
  std::string mend = fmt::format("use a train.batch of {}", (batch / groups + 1) * groups);
  if (largest >= options.place.data)
    mend += fmt::format(", or numerics.virtual_data = {}", largest);
  throw ConfigError("numerics.virtual_data", std::to_string(groups),
                    fmt::format("must divide the global batch of {} sequences with "
                                "numerics.reproducible",
                                batch),
                    mend);
}

}  // namespace

void check_layout(const StageOptions& options) {
  const Place& place = options.place;
  if (options.zero < 0 || options.zero > 3) {
    throw ConfigError("parallel.zero", std::to_string(options.zero), "must be 0, 1, 2 or 3",
                      fmt::format("use {}", options.zero < 0 ? 0 : 3));
  }
  if (options.virtual_stages < 1) {
    throw ConfigError("parallel.virtual_stages", std::to_string(options.virtual_stages),
                      "must be at least 1", "use 1 or more");
  }
  if (options.virtual_stages > 1 && place.pipeline == 1) {
    throw ConfigError("parallel.virtual_stages", std::to_string(options.virtual_stages),
                      "one pipeline stage has nothing to interleave with",
                      "use 1, or parallel.pipeline of at least 2");
  }
  if (place.shard < 1 || place.data % place.shard != 0) {
    throw ConfigError("zero.group", std::to_string(place.shard),
                      fmt::format("must divide the data-parallel degree, {}", place.data),
                      fmt::format("use {}", std::gcd(std::max(place.shard, 1), place.data)));
  }
  if (options.sequences < 1) {
    throw ConfigError("train.micro_batch", std::to_string(options.sequences), "must be at least 1",
                      "use 1 or more");
  }
  if (!options.reproducible) return;
  check_virtual("parallel.tensor", place.tensor, "numerics.virtual_tensor", options.virtual_tensor);
  check_virtual("parallel.data", place.data, "numerics.virtual_data", options.virtual_data);
  if (options.train) check_sequences(options);
}

void check_forward_order(const schedule::Schedule& schedule) {
  const int last = schedule.virtual_stages() - 1;
  int before = -1;
  for (const schedule::Action& action :
       schedule.actions[static_cast<std::size_t>(last % schedule.stages)]) {
    if (action.kind != schedule::Kind::forward || action.chunk != last / schedule.stages) continue;
    if (action.micro_batch < before) {
      throw ConfigError("parallel.schedule", schedule.name,
                        fmt::format("forward of micro-batch {} follows that of {} on the last "
                                    "virtual stage, which adds to sums in forward",
                                    action.micro_batch, before),
                        "put them in ascending order, or numerics.reproducible = false");
    }
    before = action.micro_batch;
  }
}

}  // namespace trireme::parallel
