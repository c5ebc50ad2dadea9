// Backends that choose among algorithms whose bits may differ, and how ranks agree on the choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::ops {

/// How products of one kind are computed, as text for a run's record.
struct Choice {
  std::int64_t rows = 0, columns = 0, depth = 0;  // c [rows, columns] = op(a) [rows, depth]·op(b)
  std::string factors, result;                    // types: "bf16", "fp32"
  std::string form;                               // "NN", "NT", "TN": a and b, T: transposed
  bool accumulates = false;
  std::string epilogue;   // "none", "bias", …
  std::string algorithm;  // the library's number and workspace, or that it has none
  std::string source;     // "heuristic", "timed"
};

/// How plain causal attention in bf16 or fp16 of one kind is computed, as text for a run's record.
struct AttentionChoice {
  std::int64_t batch = 0, tokens = 0, heads = 0, groups = 0, size = 0;
  std::string type;
  bool backward = false;
  std::string kernel;          // the library's name of it; empty: our own kernel
  std::int64_t workspace = 0;  // bytes, of the library's
  std::string refusal;         // why the library refuses it
};

/// Second base of such an Ops: `dynamic_cast<AlgorithmChoices*>(&ops)` is null for other ones.
class AlgorithmChoices {
 public:
  AlgorithmChoices() = default;
  AlgorithmChoices(const AlgorithmChoices&) = delete;
  AlgorithmChoices& operator=(const AlgorithmChoices&) = delete;
  virtual ~AlgorithmChoices() = default;
  /// The choices for all shapes so far, as bytes for ranks of the same build.
  virtual std::vector<std::byte> choices() const = 0;
  /// Uses `choices` from now on and times no further algorithms. Throws Error for choices of
  /// another library version or kind of device.
  virtual void use_choices(std::span<const std::byte> choices) = 0;
  /// The same as text, in the same order.
  virtual std::vector<Choice> describe_choices() const = 0;
  /// Of this process's calls so far, ordered by shape.
  virtual std::vector<AttentionChoice> describe_attention() const { return {}; }
};

}  // namespace trireme::ops
