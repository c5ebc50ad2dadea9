// How a run is laid out over ranks.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::parallel {

struct ParallelConfig {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 0;     // 0: the rest of the world
  std::int64_t servers = 0;  // ranks beside the grid
  bool sequence = false;
  std::string schedule = "1f1b";
  std::int64_t virtual_stages = 1;
  std::int64_t zero = 0;
  std::string recompute = "auto";
  std::int64_t bucket_mb = 8;  // gradients reduced, or read by an offloaded update, together
  bool overlap = true;         // reduce while backward runs
  std::int64_t threads = 0;    // OpenMP threads of a rank; 0: cores of the node / ranks of the node

  void declare(config::Fields& fields) {
    fields.add("tensor", tensor, "tensor-parallel degree: ranks that share each layer's matrices",
               config::at_least(1));
    fields.add("pipeline", pipeline, "pipeline stages: ranks that share out the layers",
               config::at_least(1));
    fields.add("data", data, "data-parallel degree; 0: the rest of the world", config::at_least(0));
    fields.add("servers", servers,
               "the world's last ranks, which hold parameters and optimizer state for the others "
               "(data_parallel.method = server or async-server)",
               config::at_least(0));
    fields.add("sequence", sequence,
               "sequence parallelism: tensor ranks also share out norms, dropout and residuals");
    fields.add("schedule", schedule,
               "pipeline schedule: gpipe, 1f1b, interleaved, zero-bubble or file:SCHEDULE.csv");
    fields.add("virtual_stages", virtual_stages, "chunks of layers on each stage (interleaved)",
               config::in_range(1, 1024));
    fields.add("zero", zero,
               "what data ranks share out: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
               "parameters too",
               config::in_range(0, 3));
    fields.add("recompute", recompute,
               "what backward makes again instead of keeping: none, cheap (norms and activation "
               "functions), selective (attention too), full; auto: cheap on CPUs from a width of "
               "512, else none",
               config::one_of({"auto", "none", "cheap", "selective", "full"}));
    fields.add(
        "bucket_mb", bucket_mb,
        "MB of gradients in one reduction (zero 0; else a reduction per layer), and in one update "
        "of an offloaded optimizer",
        config::in_range(1, 1 << 20));
    fields.add("overlap", overlap, "reduce gradients while backward still runs");
    fields.add("threads", threads,
               "threads of a rank; 0: OMP_NUM_THREADS, else its share of the node's cores",
               config::in_range(0, 4096));
  }
};

/// Sharding of state over the data axis, where parallel.zero asks for it, and where shares are
/// kept.
struct ZeroConfig {
  std::string group = "all";  // all | node | a number of data ranks
  bool reshard_after_forward = true;
  std::string offload = "none";

  void declare(config::Fields& fields) {
    fields.add("group", group,
               "data ranks that share state: all, node (those of a node) or a number; the groups "
               "hold replicas");
    fields.add("reshard_after_forward", reshard_after_forward,
               "zero 3: free a layer's parameters after forward and gather them again for "
               "backward");
    fields.add("offload", offload,
               "optimizer: a GPU's share of optimizer state and fp32 masters is kept in host "
               "memory and updated by the CPU; none",
               config::one_of({"none", "optimizer"}));
  }
};

/// How the data axis becomes one model: docs/data-parallel-methods.md.
struct DataParallelConfig {
  std::string method = "allreduce";
  std::string gradients = "fp32";  // as workers send them to servers

  void declare(config::Fields& fields) {
    fields.add("method", method,
               "allreduce (with zero 0 to 3); server: parameter servers that wait for all workers; "
               "async-server: that wait for none; average: workers on their own whose weights are "
               "averaged now and then",
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
               "async-server: seconds without a word after which a worker counts as dead",
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

  void declare(config::Fields& fields) {
    fields.add("every", every, "steps that workers train on their own between two averages",
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

struct NumericsConfig {
  bool reproducible = false;
  std::int64_t virtual_data = 8;
  std::int64_t virtual_tensor = 8;

  void declare(config::Fields& fields) {
    fields.add("reproducible", reproducible,
               "the same bits in every layout, several times slower: for proof and debugging");
    fields.add("virtual_data", virtual_data,
               "reproducible: sums over sequences are kept apart in so many groups, a power of two "
               "that data degrees divide",
               config::in_range(1, 65536));
    fields.add("virtual_tensor", virtual_tensor,
               "reproducible: matrices are cut into so many tiles, a power of two that tensor "
               "degrees divide",
               config::in_range(1, 1024));
  }
};

/// What each kind of number is kept in. Gradients are added up and sent in fp32, and so are norms,
/// softmax and loss computed; where products take a narrower type, the weights that they read are
/// fp32 masters, rounded.
struct PrecisionConfig {
  std::string compute = "fp32";
  std::string rounding = "nearest";

  void declare(config::Fields& fields) {
    fields.add("compute", compute,
               "type of activations, matrix products and the weights they read: fp32, bf16 or "
               "fp16 (with loss scaling, on GPUs); bf16 on CPUs with AVX512_BF16",
               config::one_of({"fp32", "bf16", "fp16"}));
    fields.add("rounding", rounding,
               "how the weights that products read are rounded from fp32 masters: to nearest, or "
               "up as often as they are near the upper neighbor (stochastic, with bf16)",
               config::one_of({"nearest", "stochastic"}));
  }
};

}  // namespace trireme::parallel
