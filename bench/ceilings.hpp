// What a device can do at best: measured, and as its maker names it.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "trireme/plan/peak.hpp"
#include "trireme/train/compute_device.hpp"

namespace trireme::bench {

struct Ceilings {
  double products = 0;  // operations per second, of the largest square products
  double copies = 0;    // bytes read and written per second, inside the device
  double nominal = 0;   // operations per second; 0: not known
};

/// Bytes read and written per second by the best of some large copies inside the device.
inline double measure_copy(device::Device& device) {
  using Clock = std::chrono::steady_clock;
  device::MemoryLedger ledger(device);
  const std::size_t bytes = std::size_t{1} << (device.is_host() ? 28 : 30);
  const device::Buffer from(ledger, device::Use::workspace, bytes);
  const device::Buffer to(ledger, device::Use::workspace, bytes);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    const int copies = device.is_host() ? 1 : 10;
    for (int i = 0; i < copies; ++i) device.copy(to.data(), from.data(), bytes);
    device.synchronise();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 2.0 * copies * static_cast<double>(bytes) / seconds);
  }
  return best;
}

/// Dense operations per second in bf16 or fp16 by NVIDIA's data sheets; 0 for devices that are not
/// listed here, and in fp32.
inline double nominal_peak(std::string_view device, DType type) {
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

/// `nominal` operations per second where the caller knows better (0: by the device's name).
inline Ceilings measure_ceilings(const train::ComputeDevice& computes, DType compute,
                                 double nominal) {
  device::Device& device = computes.device();
  Ceilings ceilings;
  ceilings.nominal = nominal > 0 ? nominal : nominal_peak(device.name(), compute);
  ceilings.copies = measure_copy(device);
  const parallel::MakeOps make = computes.make_ops(true);
  device::MemoryLedger ledger(device);
  const auto ops = make ? make(ledger, 0, false) : ops::make_cpu_ops(0, &ledger);
  for (const std::int64_t n : {2048, 4096, 8192}) {
    if (device.is_host() && n > 2048) continue;
    ceilings.products =
        std::max(ceilings.products, plan::measure_product(*ops, device, compute, {n, n, n}));
  }
  return ceilings;
}

}  // namespace trireme::bench
