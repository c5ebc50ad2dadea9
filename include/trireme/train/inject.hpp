// Faults made on purpose, to see them found: train.inject = "nan@7, flip@12/1, slow@5/3".
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
    slow,   // the rank takes `step` times as long for all its steps; what has no step
    flip    // one bit of the rank's parameters or optimizer state is another one after the update,
            // drawn from train.seed and the step
  };
  Kind kind = Kind::nan;
  std::int64_t step = 0;  // 1-based, as in metrics.jsonl; slow: the factor
  int rank = 0;           // of the world
};

/// "KIND@STEP" (on rank 0) or "KIND@STEP/RANK", separated by commas; "none": none. Throws
/// ConfigError.
std::vector<Fault> parse_faults(std::string_view text);

/// How much slower `rank` is made; 1: not at all.
double slowness(const std::vector<Fault>& faults, int rank);
/// Sleeps so that what took `seconds` takes as long as it is made to take.
void slow_down(double slowness, double seconds);

}  // namespace trireme::train
