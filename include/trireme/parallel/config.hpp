// How a run is laid out over ranks.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::parallel {

struct ParallelConfig {
  std::int64_t data = 0;       // data-parallel degree; 0: the rest of the world
  std::int64_t bucket_mb = 8;  // gradients reduced together
  bool overlap = true;         // reduce while backward runs
  std::int64_t threads = 0;    // OpenMP threads of a rank; 0: cores of the node / ranks of the node

  void declare(config::Fields& fields) {
    fields.add("data", data, "data-parallel degree; 0: the rest of the world", config::at_least(0));
    fields.add("bucket_mb", bucket_mb, "MB of gradients in one reduction", config::at_least(1));
    fields.add("overlap", overlap, "reduce gradients while backward still runs");
    fields.add("threads", threads,
               "threads of a rank; 0: OMP_NUM_THREADS, else its share of the node's cores",
               config::at_least(0));
  }
};

/// What each kind of number is kept in; on CPUs fp32 throughout.
struct PrecisionConfig {
  std::string compute = "fp32";
  std::string parameters = "fp32";
  std::string gradients = "fp32";
  std::string reduce = "fp32";

  void declare(config::Fields& fields) {
    const auto rule = config::one_of({"fp32"});
    fields.add("compute", compute, "type of activations and matrix products", rule);
    fields.add("parameters", parameters, "type of the weights that products read", rule);
    fields.add("gradients", gradients, "type gradients are accumulated in", rule);
    fields.add("reduce", reduce, "type gradients are sent in", rule);
  }
};

}  // namespace trireme::parallel
