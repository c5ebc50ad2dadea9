// The device that a rank computes on, and its operations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/comm/shape.hpp"
#include "trireme/device/config.hpp"
#include "trireme/device/device.hpp"
#include "trireme/parallel/config.hpp"
#include "trireme/parallel/replica.hpp"

namespace trireme::train {

/// The devices other than the host that this process sees.
struct DeviceSource {
  std::function<int()> count;
  std::function<std::unique_ptr<device::Device>(int index)> make;
  /// The operations of one of them, as the configuration has it; see ComputeDevice::make_ops.
  std::function<parallel::MakeOps(device::Device& device, const device::DeviceConfig& config)>
      operations;
};
DeviceSource cuda_devices();

class ComputeDevice {
 public:
  /// Takes the configured device. With cuda, worker n of a node takes device n modulo their number.
  /// The job's last `servers` ranks are not workers: they stay on the host and are not counted.
  /// Collective over the session; throws AgreedError on every rank if a worker has no device.
  ComputeDevice(const device::DeviceConfig& config, const comm::Session& session, int servers = 0,
                DeviceSource source = cuda_devices());
  device::Device& device() const { return own_ ? *own_ : device::host_device(); }
  /// Whether workers compute on CPUs, and the name of the first one's device; the same on every
  /// rank, on servers too.
  bool on_host() const { return on_host_; }
  const std::string& name() const { return name_; }
  /// Makes the operations of this device, which must outlive them. With `time_products`, but not in
  /// reproducible mode, the algorithm of a product is chosen by time where its shape first occurs:
  /// for those who have the ranks agree on them (Replica::settle_choices).
  parallel::MakeOps make_ops(bool time_products = false) const;
  /// Whether this rank computes by the CUDA backend: not on the host, nor on a simulated device.
  bool on_cuda() const;
  /// Bytes of the GPU's memory that are free now; nothing on the host.
  std::optional<std::int64_t> free_bytes() const;
  /// Notes it under a name of its moment, for the record.
  void note_free_bytes(const std::string& moment);
  const std::map<std::string, std::int64_t>& noted_free_bytes() const { return free_bytes_; }
  /// One line if the device or type makes the run slower; else empty. The same on every rank.
  const std::string& warning() const { return warning_; }
  /// Whether every worker's device computes in `type`; the same on every rank.
  bool computes_in(DType type) const;
  /// Restricts `precision` to types that the device computes in. Where processors do not multiply
  /// bf16, it becomes fp32, rounded to nearest, and `warning` reports it. Throws ConfigError for
  /// types that CPUs never compute in, and as check_rounding. Collective over `world`.
  void settle_precision(parallel::PrecisionConfig& precision, comm::Communicator& world);

 private:
  DeviceSource source_;
  device::DeviceConfig config_;
  bool cpu_bf16_ = false;
  std::unique_ptr<device::Device> own_;  // absent: the host
  bool on_host_ = true;
  std::string name_ = device::host_device().name();
  std::string warning_;
  std::map<std::string, std::int64_t> free_bytes_;  // by moment
};

/// The type that a checkpoint was trained in; fp32 where it does not say. Throws Error for a type
/// that there is not.
DType compute_type_of(const checkpoint::State& state);

/// Throws ConfigError where weights are to be rounded stochastically to another type than bf16.
void check_rounding(const parallel::PrecisionConfig& precision);

}  // namespace trireme::train
