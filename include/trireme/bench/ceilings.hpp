// What a device can do at best: measured, and as its maker names it.
#pragma once

#include <memory>
#include <string_view>

#include "trireme/plan/peak.hpp"
#include "trireme/train/compute_device.hpp"

namespace trireme::bench {

struct Ceilings {
  double products = 0;  // operations per second, of the largest square products
  double copies = 0;    // bytes read and written per second, inside the device
  double nominal = 0;   // operations per second; 0: not known
};

/// Dense operations per second in bf16 or fp16 by NVIDIA's data sheets; 0 for devices that are not
/// listed here, and in fp32.
double nominal_peak(std::string_view device, DType type);

/// The device's operations, on `threads` (0: what OpenMP offers) where it is the host; algorithms
/// of products are chosen by time.
std::unique_ptr<ops::Ops> make_ops(const train::ComputeDevice& computes,
                                   device::MemoryLedger& ledger, int threads);

/// Operations per second of the best square products of 2048, and on a device that is not the host
/// 4096 and 8192.
double measure_squares(ops::Ops& ops, device::Device& device, DType type);

/// `nominal` operations per second where the caller knows better (0: by the device's name).
Ceilings measure_ceilings(const train::ComputeDevice& computes, DType compute, double nominal);

}  // namespace trireme::bench
