// Faults made on purpose, so that what finds them can be tested (train.inject).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::train {

struct Fault {
  enum class Kind : std::uint8_t {
    nan,    // in each micro-batch of the rank, and of those that have the same batch, the weight of
            // one target is NaN
    spike,  // the gradient is a million times too large, on every rank
    inf,    // the rank's reduced gradients are infinite
    slow,   // the rank takes `step` times as long for all its steps; the fault has no step
    flip    // one bit of the rank's parameters or optimizer state changes after the update, drawn
            // from train.seed and the step
  };
  Kind kind = Kind::nan;
  std::int64_t step = 0;  // 1-based, as in metrics.jsonl; slow: the factor
  int rank = 0;           // of the world
};

/// "KIND@STEP" (on rank 0) or "KIND@STEP/RANK", separated by commas; "none": none. Throws
/// ConfigError.
std::vector<Fault> parse_faults(std::string_view text);
/// Throws ConfigError where a fault of `value` names a rank or step that the run does not have.
void check_faults(const std::vector<Fault>& faults, const std::string& value, int ranks,
                  std::int64_t steps);

/// Makes the faults of one rank. Steps count from 1.
class FaultInjector {
 public:
  /// `shares_batch`: whether a rank computes on the same micro-batches as this one; by default only
  /// itself does.
  FaultInjector(std::vector<Fault> faults, int rank,
                std::function<bool(int rank)> shares_batch = {})
      : faults_(std::move(faults)), rank_(rank), shares_batch_(std::move(shares_batch)) {
    if (!shares_batch_) shares_batch_ = [rank](int other) { return other == rank; };
  }
  void into_batch(data::Batch& batch, std::int64_t step) const;
  /// The same once, in the first step from the fault's on that this rank has.
  void into_batch_once(data::Batch& batch, std::int64_t step);
  /// Between backward and the norm.
  void into_gradients(parallel::Replica& replica, std::int64_t step) const;
  /// After the update; draws the bit from `seed`, and prints it on standard error.
  void into_weights(parallel::Replica& replica, std::int64_t step, std::uint64_t seed) const;
  /// How many times as long this rank computes; 1: it is not slowed down.
  double slowness() const;
  /// Sleeps so that what took `seconds` takes as long as it is made to take.
  void slow_down(double seconds) const;

 private:
  bool due(Fault::Kind kind, std::int64_t step) const;
  std::vector<Fault> faults_;
  int rank_;
  std::function<bool(int rank)> shares_batch_;
};

}  // namespace trireme::train
