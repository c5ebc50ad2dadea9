// How a run is laid out over ranks.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::parallel {

struct ParallelConfig {
  std::string layout = "given";  // given | auto
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 0;     // 0: the rest of the world
  std::int64_t servers = 0;  // ranks beside the grid
  bool sequence = false;
  std::string schedule = "1f1b";
  std::int64_t virtual_stages = 1;
  std::int64_t zero = 0;
  std::string recompute = "auto";
  std::int64_t bucket_mb = 8;  // gradients reduced, or read by an offloaded update, together
  bool overlap = true;         // communicate while computation runs
  std::int64_t threads = 0;    // OpenMP threads of a rank; 0: see the help text

  void declare(config::Fields& fields) {
    fields.add("layout", layout,
               "given: by the keys below; auto: the one with the shortest predicted step on the "
               "machine file of train.predict, as plan --search finds it",
               config::one_of({"given", "auto"}));
    fields.add("tensor", tensor, "tensor-parallel degree: ranks that share each layer's matrices",
               config::in_range(1, 1024));
    fields.add("context", context,
               "context-parallel degree: ranks that share each sequence's tokens, which attention "
               "exchanges",
               config::in_range(1, 1024));
    fields.add("pipeline", pipeline, "pipeline stages: ranks among which the layers are divided",
               config::in_range(1, 1024));
    fields.add("data", data, "data-parallel degree; 0: the rest of the world", config::at_least(0));
    fields.add("servers", servers,
               "the world's last ranks, which hold parameters and optimizer state for the others "
               "(data_parallel.method = server or async-server)",
               config::at_least(0));
    fields.add("sequence", sequence,
               "sequence parallelism: tensor ranks also divide norms, dropout and residuals");
    fields.add("schedule", schedule,
               "pipeline schedule: gpipe, 1f1b, interleaved, zero-bubble or file:SCHEDULE.csv");
    fields.add("virtual_stages", virtual_stages,
               "chunks of layers on each stage (interleaved, gpipe and files)",
               config::in_range(1, 1024));
    fields.add("zero", zero,
               "what data ranks shard: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
               "parameters too",
               config::in_range(0, 3));
    fields.add("recompute", recompute,
               "what backward recomputes instead of keeping: none, cheap (norms and activation "
               "functions), selective (attention too), full; auto: cheap on CPUs from a width of "
               "512, else none",
               config::one_of({"auto", "none", "cheap", "selective", "full"}));
    fields.add(
        "bucket_mb", bucket_mb,
        "MB of gradients in one reduction (zero 0; else a reduction per layer), and in one update "
        "of an offloaded optimizer",
        config::in_range(1, 1 << 20));
    fields.add("overlap", overlap,
               "reduce gradients, sum over tensor ranks, and with zero 3 gather parameters, while "
               "computation runs");
    fields.add("threads", threads,
               "threads of a rank; 0: OMP_NUM_THREADS, else its share of the node's cores",
               config::in_range(0, 4096));
  }
};

/// Sharding of state over the data axis with parallel.zero, and the memory that holds the shards.
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
               "optimizer: a GPU's shard of optimizer state and fp32 masters is kept in host "
               "memory and updated by the CPU; none",
               config::one_of({"none", "optimizer"}));
  }
};

struct ContextConfig {
  std::string exchange = "auto";

  void declare(config::Fields& fields) {
    fields.add("exchange", exchange,
               "how keys and values reach context ranks: gather all at once; ring: from rank to "
               "rank, two at a time in memory; auto: gather with 2 ranks and in reproducible mode, "
               "else ring",
               config::one_of({"gather", "ring", "auto"}));
  }
};

struct NumericsConfig {
  bool reproducible = false;
  std::int64_t virtual_data = 8;
  std::int64_t virtual_tensor = 8;
  std::int64_t virtual_context = 1;

  void declare(config::Fields& fields) {
    fields.add("reproducible", reproducible,
               "the same bits in every layout; slower with small matrices");
    fields.add("virtual_data", virtual_data,
               "reproducible: sums over sequences are kept apart in so many groups, a power of two "
               "that data degrees divide",
               config::in_range(1, 65536));
    fields.add("virtual_tensor", virtual_tensor,
               "reproducible: matrices are cut into so many tiles, a power of two that tensor "
               "degrees divide",
               config::in_range(1, 1024));
    fields.add("virtual_context", virtual_context,
               "reproducible: each sequence is cut into so many parts, a power of two that context "
               "degrees divide",
               config::in_range(1, 1024));
  }
};

/// Types of numbers. Gradients are added up in fp32; norms, softmax and loss are computed in fp32.
/// Where products take a narrower type, they read weights rounded from fp32 masters.
struct PrecisionConfig {
  std::string compute = "fp32";
  std::string rounding = "nearest";

  void declare(config::Fields& fields) {
    fields.add("compute", compute,
               "type of activations, matrix products and the weights they read: fp32, bf16 or "
               "fp16 (with loss scaling, on GPUs); bf16 on CPUs with AVX512_BF16",
               config::one_of({"fp32", "bf16", "fp16"}));
    fields.add("rounding", rounding,
               "rounding of fp32 masters to the weights that products read: nearest, or stochastic "
               "(bf16 only): up with a probability proportional to the distance from the lower "
               "neighbor",
               config::one_of({"nearest", "stochastic"}));
  }
};

}  // namespace trireme::parallel
