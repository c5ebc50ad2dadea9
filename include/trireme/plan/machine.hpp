// A machine as a step's time depends on it: a TOML file, and the time of each call on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/comm/shape.hpp"
#include "trireme/core/config.hpp"
#include "trireme/plan/operation_table.hpp"
#include "trireme/plan/trace.hpp"

namespace trireme::plan {

/// How the ranks of a group are placed: `ranks` on `nodes` nodes, `sharing` groups of its kind with
/// traffic on each node.
struct Placement {
  int ranks = 1, nodes = 1, sharing = 1;
};

/// Every field is a key of the file; those without a sensible value must be there.
struct Machine {
  std::string name, source;
  std::int64_t ranks_per_node = 1;
  double price = 0;  // of an hour of a node, in any currency; 0: unknown

  struct Device {
    std::string type = "gpu";
    double memory_gib = 1;
    double launch_us = 0;     // the host's time for an operation, while the device works
    double operation_us = 0;  // of each operation beside what its size takes
    double step_ms = 0;       // the host's work between steps
    void declare(config::Fields& fields);
  } device;

  /// t = flops / (efficiency·peak)·(1 + rows_half/m + columns_half/n + depth_half/k), or what its
  /// bytes take.
  struct Products {
    double fp32_tflops = 0, bf16_tflops = 0, fp16_tflops = 0;
    double efficiency = 1;
    double rows_half = 0, columns_half = 0, depth_half = 0;
    void declare(config::Fields& fields);
  } products;

  /// t = flops / (efficiency·peak)·(1 + rows_half/queries). Without `fused` all scores are
  /// computed, and written and read: score_bytes of each in forward, twice as many in backward, by
  /// `launches` operations, likewise. Both times slow_factor where heads × sequences are no
  /// multiple of softmax_multiple, which a softmax for such numbers alone requires.
  struct Attention {
    bool fused = true;
    double forward_efficiency = 0.5, backward_efficiency = 0.4;  // of the peak of products
    double rows_half = 0;
    double score_bytes = 0, launches = 1;
    std::int64_t softmax_multiple = 1;
    double slow_factor = 1;
    void declare(config::Fields& fields);
  } attention;

  /// Kernel launches for the gradient of each block of logits (model::Head computes as many rows at
  /// once): more than one where the loss is not fused.
  struct Loss {
    double launches = 1;
    void declare(config::Fields& fields);
  } loss;

  struct Memory {
    double gb_per_s = 1;
    double efficiency = 1, update_efficiency = 1;  // of operations, and of an optimizer
    void declare(config::Fields& fields);
  } memory;

  /// Of one rank inside a node, and of a node to others; each direction. 0 GB/s: not known, and an
  /// Error where a layout needs it.
  struct Link {
    double latency_us = 0, gb_per_s = 0;
    double slowdown = 1;  // of computation while messages pass
    double stretch = 1;   // of messages while one of their ranks computes
    void declare(config::Fields& fields);
  } node, network;

  struct Links {
    std::string collectives = "ring";
    double launch_us = 0;      // the host's time to start an operation of a group
    double message_us = 0;     // the same of a message between stages
    bool synchronous = false;  // the host waits for the device before and after a stage's message
    bool overlap = true;       // gradients are reduced while backward continues; else after it
    void declare(config::Fields& fields);
  } links;

  /// Operations that were measured one by one: the file's operations.measured.
  OperationTable measured;

  /// All but `measured`.
  void declare(config::Fields& fields);
  /// Throws AgreedError and ConfigError that name file, key, rule and remedy.
  static Machine read(const std::filesystem::path& path);
  std::string to_toml() const;

  bool on_host() const { return device.type == "cpu"; }
  /// Seconds that the device computes: by the formulas, corrected by what was measured.
  double seconds(const Work& work) const;
  /// By the formulas alone.
  double formula_seconds(const Work& work) const;
  /// Seconds in which the host starts it.
  double launch_seconds(const Work& work) const;
  /// Seconds from the moment when all of the group have started it.
  double seconds(const comm::PlannedOperation& operation, const Placement& placement) const;
  /// Of a message between two ranks of a node, or of different ones whose link `sharing` messages
  /// share.
  double message_seconds(std::int64_t bytes, bool same_node, int sharing) const;
  /// Of an operation on a stream that stays in the rank's memory.
  double local_seconds(std::int64_t bytes) const;
  /// Operations per second of a rank's products of a type; 0: the file does not have it.
  double peak(DType type) const;

 private:
  /// Of attention that is not fused.
  double slow_factor(const Work& work) const;
  double rate_of(const Link& link) const;  // bytes per second
  /// Of one of `sharing` senders of a node: no faster than a rank sends inside a node.
  double network_rate(int sharing) const;
  double bandwidth() const { return memory.gb_per_s * 1e9 * memory.efficiency; }
};

}  // namespace trireme::plan
