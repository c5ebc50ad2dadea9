#include "trireme/bench/ceilings.hpp"

#include <algorithm>

#include "trireme/bench/measure.hpp"

namespace trireme::bench {

double nominal_peak(std::string_view device, DType type) {
  if (type != DType::bf16 && type != DType::f16) return 0;
  struct Known {
    std::string_view name;
    double teraflops;
  };
  // The longer name of two first.
  constexpr Known known[] = {{"H200 NVL", 835.5}, {"H200", 989.4},  {"H100 PCIe", 756},
                             {"H100 NVL", 835.5}, {"GH200", 989.4}, {"H100", 989.4},
                             {"GB200", 2500},     {"B200", 2250},   {"A100", 312},
                             {"A40", 149.7},      {"L40S", 362.05}};
  for (const Known& each : known) {
    if (device.find(each.name) != std::string_view::npos) return each.teraflops * 1e12;
  }
  return 0;
}

std::unique_ptr<ops::Ops> make_ops(const train::ComputeDevice& computes,
                                   device::MemoryLedger& ledger, int threads) {
  const parallel::MakeOps make = computes.make_ops(true);
  return make ? make(ledger, threads, false) : ops::make_cpu_ops(threads, &ledger);
}

double measure_squares(ops::Ops& ops, device::Device& device, DType type) {
  double best = 0;
  for (const std::int64_t n : {2048, 4096, 8192}) {
    if (device.is_host() && n > 2048) continue;
    best = std::max(best, plan::measure_product(ops, device, type, {n, n, n}));
  }
  return best;
}

Ceilings measure_ceilings(const train::ComputeDevice& computes, DType compute, double nominal) {
  device::Device& device = computes.device();
  device::MemoryLedger ledger(device);
  const auto ops = make_ops(computes, ledger, 0);
  return {.products = measure_squares(*ops, device, compute),
          .copies = plan::measure_copy(device),
          .nominal = nominal > 0 ? nominal : nominal_peak(device.name(), compute)};
}

}  // namespace trireme::bench
