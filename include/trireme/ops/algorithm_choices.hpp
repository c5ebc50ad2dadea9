// Backends that choose among algorithms whose bits may differ, and how ranks come to the same
// choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::ops {

/// How a product of one kind is done, in words for a run's record.
struct Choice {
  std::int64_t rows = 0, columns = 0, depth = 0;  // c [rows, columns] = op(a) [rows, depth]·op(b)
  std::string factors, result;                    // types: "bf16", "fp32"
  std::string form;                               // "NN", "NT", "TN": a and b as they lie
  bool accumulates = false;
  std::string epilogue;   // "none", "bias", …
  std::string algorithm;  // the library's number and work space, or that it has none
  std::string source;     // "heuristic", "timed"
};

/// How attention of one kind is computed, in words for a run's record: plain causal calls of a
/// narrow type, which a library may take.
struct AttentionChoice {
  std::int64_t batch = 0, tokens = 0, heads = 0, groups = 0, size = 0;
  std::string type;
  bool backward = false;
  std::string kernel;          // the library's name of its kernel; empty: our own computes it
  std::int64_t workspace = 0;  // bytes, of the library's
  std::string refusal;         // why the library does not take it
};

/// What such an Ops is beside it: `dynamic_cast<AlgorithmChoices*>(&ops)` is null for one that
/// never chooses.
class AlgorithmChoices {
 public:
  AlgorithmChoices() = default;
  AlgorithmChoices(const AlgorithmChoices&) = delete;
  AlgorithmChoices& operator=(const AlgorithmChoices&) = delete;
  virtual ~AlgorithmChoices() = default;
  /// What was chosen for the shapes met so far, as bytes for ranks of the same build.
  virtual std::vector<std::byte> choices() const = 0;
  /// Uses them from now on, over those for the same shapes; for shapes that are yet to be met
  /// nothing is timed any more. Throws Error for those of another library's version or another kind
  /// of device.
  virtual void use_choices(std::span<const std::byte> choices) = 0;
  /// The same as `choices`, to be read, in their order.
  virtual std::vector<Choice> describe_choices() const = 0;
  /// Of this process's calls so far, in an order of their shapes. No rank asks another.
  virtual std::vector<AttentionChoice> describe_attention() const { return {}; }
};

}  // namespace trireme::ops
