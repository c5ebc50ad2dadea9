// Where a run computes.
#pragma once

#include <string>

#include "trireme/core/config.hpp"

namespace trireme::device {

struct DeviceConfig {
  std::string type = "auto";
  bool tf32 = false;
  bool time_products = true;
  bool deterministic_attention = false;
  bool graphs = false;

  void declare(config::Fields& fields) {
    fields.add("type", type, "cpu, cuda, or auto: cuda where every rank sees a device",
               config::one_of({"auto", "cpu", "cuda"}));
    fields.add("tf32", tf32,
               "CUDA: fp32 products on tensor cores, which keep 10 bits of each factor's fraction");
    fields.add("time_products", time_products,
               "CUDA: choose the algorithms of products by time before training, for all ranks "
               "alike; else, and in reproducible mode, by the library's heuristics");
    fields.add(
        "deterministic_attention", deterministic_attention,
        "CUDA: attention's backward adds in a fixed order, as in reproducible mode, "
        "and on Hopper takes 2 bytes of work space for each pair of tokens, by sequence and head");
    fields.add("graphs", graphs,
               "CUDA: capture what a step computes into graphs, of which each costs one launch; "
               "without train.trace");
  }
};

}  // namespace trireme::device
