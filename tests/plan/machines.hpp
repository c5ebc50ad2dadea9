// Machines of round numbers.
#pragma once

#include "trireme/plan/machine.hpp"

namespace trireme::plan::test {

inline Machine gpu_machine() {
  Machine machine;
  machine.name = "gpu";
  machine.ranks_per_node = 4;
  machine.device = {.type = "gpu", .memory_gib = 80, .launch_us = 4, .operation_us = 2};
  machine.products = {.fp32_tflops = 100, .bf16_tflops = 100, .fp16_tflops = 100};
  machine.memory = {.gb_per_s = 1000};
  machine.node = {.latency_us = 5, .gb_per_s = 100};
  machine.network = {.latency_us = 10, .gb_per_s = 50};
  return machine;
}

inline Machine cpu_machine() {
  Machine machine = gpu_machine();
  machine.name = "cpu";
  machine.device = {.type = "cpu", .memory_gib = 64};
  machine.products = {.fp32_tflops = 0.1, .bf16_tflops = 0.1};
  machine.memory.gb_per_s = 10;
  return machine;
}

}  // namespace trireme::plan::test
