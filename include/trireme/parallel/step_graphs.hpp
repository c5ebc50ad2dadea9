// A training step as graphs of the device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::parallel {

/// The computation of a step as graphs of the device: what every step queues in the same way is
/// captured once, and then launched.
class StepGraphs {
 public:
  /// The properties of a step's batches that decide which operations are queued, as numbers.
  using Pattern = std::vector<int>;
  /// Steps of so many patterns are kept as graphs; those of others are queued each time.
  static constexpr std::size_t most_patterns = 4;

  /// Captures nothing where it is not `wanted` or the ledger's device does not capture.
  StepGraphs(device::MemoryLedger& ledger, bool wanted);

  /// Whether graphs are made, of steps with a pattern that was queued before.
  bool active() const { return device_ != nullptr; }
  /// The device's error that ended capturing; empty: none.
  const std::string& refusal() const { return refusal_; }
  /// How many graphs were made so far, and how often one was launched.
  std::uint64_t captured() const { return captured_; }
  std::uint64_t launched() const { return launched_; }

  /// All that is queued until the next call is a step of this pattern.
  void begin_step(const Pattern& pattern);
  /// What is queued: a computation. `capture`, unless null, takes the operations of streams that
  /// come in between.
  using Work = std::function<void(device::GraphSequence* capture)>;
  /// Queues `work`, which is the same in every step of the pattern under the same number. The first
  /// such step calls it, later ones launch its graphs. Work space moves when it grows; then all
  /// graphs are captured again. `work` has no other lasting effect.
  void queue(std::size_t number, const Work& work);
  /// Drops all graphs: later steps differ from those so far.
  void forget();

 private:
  struct Step {
    bool queued = false;  // once, so that libraries are loaded and work space has grown
    std::map<std::size_t, std::unique_ptr<device::GraphSequence>> graphs;  // by number
  };
  device::MemoryLedger& ledger_;
  device::Device* device_;  // null: not active
  std::map<Pattern, Step> steps_;
  Step* current_ = nullptr;  // null: not active, or more than most_patterns
  std::uint64_t added_ = 0;  // to work space, when the graphs were made
  std::uint64_t captured_ = 0, launched_ = 0;
  std::string refusal_;
};

}  // namespace trireme::parallel
