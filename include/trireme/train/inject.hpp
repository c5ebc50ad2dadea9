// Faults made on purpose, to see them found: train.inject = "nan@7, flip@12/1".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

struct Fault {
  enum class Kind : std::uint8_t {
    nan,    // in each of the rank's micro-batches one target's weight is not a number
    spike,  // the gradient is a million times too large, on every rank
    inf,    // the rank's reduced gradients are infinite
    flip    // one bit of the rank's parameters or optimiser state is another one after the update,
            // drawn from train.seed and the step
  };
  Kind kind = Kind::nan;
  std::int64_t step = 0;  // 1-based, as in metrics.jsonl
  int rank = 0;           // of the world
};

/// "KIND@STEP" (on rank 0) or "KIND@STEP/RANK", separated by commas; "none": none. Throws
/// ConfigError.
std::vector<Fault> parse_faults(std::string_view text);

}  // namespace trireme::train
