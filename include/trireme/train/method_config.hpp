// How data-parallel workers share one model.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"
#include "trireme/train/select.hpp"

namespace trireme::train {

/// How the data axis becomes one model: docs/data-parallel-methods.md.
struct DataParallelConfig {
  std::string method = "allreduce";
  std::string gradients = "fp32";  // as workers send them to servers

  void declare(config::Fields& fields) {
    fields.add("method", method,
               "allreduce (with zero 0 to 3); server: parameter servers that wait for all workers; "
               "async-server: that wait for none; average: independent workers whose weights are "
               "averaged periodically",
               config::one_of({"allreduce", "server", "async-server", "average"}));
    fields.add("gradients", gradients,
               "type of the gradients that workers send to parameter servers: fp32 or bf16",
               config::one_of({"fp32", "bf16"}));
  }
};

/// Parameter servers: Li et al., "Scaling Distributed Machine Learning with the Parameter Server"
/// (2014); bounded staleness: Ho et al., "More Effective Distributed ML via a Stale Synchronous
/// Parallel Parameter Server" (2013).
struct ServerConfig {
  std::int64_t max_staleness = 8;  // updates; async-server
  std::string staleness_rate = "none";
  bool tolerate_failures = false;
  double heartbeat = 10;  // seconds

  void declare(config::Fields& fields) {
    fields.add("max_staleness", max_staleness,
               "async-server: steps that the fastest worker may be ahead of the slowest; 0: none, "
               "as server",
               config::at_least(0));
    fields.add(
        "staleness_rate", staleness_rate,
        "async-server: learning rate of an update whose gradient is s updates old: none (the "
        "same) or inverse (1 / (1 + s) of it)",
        config::one_of({"none", "inverse"}));
    fields.add("tolerate_failures", tolerate_failures,
               "async-server: go on without workers that die; needs mpirun --enable-recovery or "
               "srun --kill-on-bad-exit=0");
    fields.add("heartbeat", heartbeat,
               "async-server: seconds of silence after which a worker counts as dead",
               config::positive());
  }
};

/// Periodic averaging: McMahan et al., "Communication-Efficient Learning of Deep Networks from
/// Decentralized Data" (2017); with an outer optimizer: Douillard et al., "DiLoCo" (2023).
struct AverageConfig {
  std::int64_t every = 16;
  std::int64_t per_epoch = 0;  // 0: see every
  std::string optimizer_state = "keep";
  std::string outer = "none";
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;

  /// What an average does to the workers' optimizer states.
  enum class States : std::uint8_t { keep, average, reset };
  States states() const {
    return select<States>(
        "average.optimizer_state", optimizer_state,
        {{"keep", States::keep}, {"average", States::average}, {"reset", States::reset}});
  }
  bool has_outer() const {
    return select<bool>("average.outer", outer, {{"none", false}, {"nesterov", true}});
  }

  void declare(config::Fields& fields) {
    fields.add("every", every, "steps that workers train independently between two averages",
               config::at_least(1));
    fields.add("per_epoch", per_epoch, "averages in each pass over the data; 0: see every",
               config::at_least(0));
    fields.add("optimizer_state", optimizer_state,
               "what an average does to the workers' optimizer state: keep (each its own), average "
               "or reset",
               config::one_of({"keep", "average", "reset"}));
    fields.add(
        "outer", outer,
        "optimizer of the averages: none (the average is the new model) or nesterov (DiLoCo: "
        "the average's distance from the last model is its gradient)",
        config::one_of({"none", "nesterov"}));
    fields.add("outer_learning_rate", outer_learning_rate, "of the outer optimizer",
               config::positive());
    fields.add("outer_momentum", outer_momentum, "of the outer optimizer",
               config::in_range(0.0, 1.0));
  }
};

}  // namespace trireme::train
