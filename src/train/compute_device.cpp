#include "trireme/train/compute_device.hpp"

#include <algorithm>
#include <utility>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::train {

DeviceSource cuda_devices() {
  return {.count = device::cuda_device_count,
          .make = device::make_cuda_device,
          .operations = [](device::Device& device, const device::DeviceConfig& config) {
            return [&device, config](device::MemoryLedger& ledger, int /*threads*/,
                                     bool reproducible) {
              return ops::make_cuda_ops(
                  device, {.ledger = &ledger,
                           .reproducible = reproducible,
                           .tf32 = config.tf32,
                           .time_algorithms = config.time_products && !reproducible,
                           .deterministic_attention = config.deterministic_attention});
            };
          }};
}

ComputeDevice::ComputeDevice(const device::DeviceConfig& config, const comm::Session& session,
                             int servers, DeviceSource source)
    : source_(std::move(source)), config_(config) {
  device::MemoryLedger ledger;  // of agreements that end here
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  cpu_bf16_ = world->all_agree(ops::cpu_multiplies_bf16());
  if (config.type == "cpu") return;
  const int workers = session.size() - servers;
  const bool serves = session.rank() >= workers;
  const int count = serves ? 0 : source_.count();
  if (config.type == "auto" && !world->all_agree(serves || count > 0)) return;
  on_host_ = false;
  comm::agree(*world, [&] {
    if (serves) return;
    if (count == 0) {
      throw Error(
          "device.type = cuda: rank {} sees no device ({}); use cpu, or give every {} a device",
          session.rank(), device::cuda_description(), servers > 0 ? "worker" : "rank");
    }
    own_ = source_.make(session.node_rank() % count);
  });
  name_ = comm::of_rank_zero(*world, [&] { return device().name(); });
  // Ranks that see one device each see it under the same number; their identities differ.
  const std::string own = own_ ? "device " + own_->identity() : "";
  const auto node = comm::make_mpi_communicator(session.node(), ledger);
  const std::vector<std::string> near = node->all_gather_texts(own);
  const std::int64_t most = world->all_reduce(
      own_ ? std::int64_t{std::count(near.begin(), near.end(), own)} : 1, comm::Reduction::max);
  if (most > 1) {
    warning_ = fmt::format(
        "up to {} ranks share one GPU: they take turns on it; give each rank a GPU of its own",
        most);
  }
}

bool ComputeDevice::on_cuda() const {
  return dynamic_cast<const device::CudaDevice*>(own_.get()) != nullptr;
}

std::optional<std::int64_t> ComputeDevice::free_bytes() const {
  const auto* cuda = dynamic_cast<const device::CudaDevice*>(own_.get());
  if (cuda == nullptr) return std::nullopt;
  return cuda->free_bytes();
}

void ComputeDevice::note_free_bytes(const std::string& moment) {
  if (const auto bytes = free_bytes()) free_bytes_[moment] = *bytes;
}

parallel::MakeOps ComputeDevice::make_ops(bool time_products) const {
  if (!own_) return {};
  device::DeviceConfig config = config_;
  config.time_products = time_products;
  return source_.operations(*own_, config);
}

void ComputeDevice::settle_precision(parallel::PrecisionConfig& precision,
                                     comm::Communicator& world) {
  comm::agree(world, [&] {
    if (precision.compute == "fp16" && on_host()) {
      throw ConfigError("precision.compute", "fp16", "on a CPU must be fp32 or bf16",
                        "use bf16, or device.type = cuda");
    }
    check_rounding(precision);
  });
  if (precision.compute != "bf16" || computes_in(DType::bf16)) return;
  precision.compute = "fp32";
  precision.rounding = "nearest";
  warning_ =
      "precision.compute = bf16: the processors have no AVX512_BF16 (or ONEDNN_MAX_CPU_ISA "
      "forbids it), so this run computes in fp32; precision.compute = fp32 asks for it by name";
}

bool ComputeDevice::computes_in(DType type) const {
  return type == DType::f32 || !on_host() || (type == DType::bf16 && cpu_bf16_);
}

DType compute_type_of(const checkpoint::State& state) {
  const nlohmann::json::json_pointer key("/precision/compute");
  if (!state.config.contains(key)) return DType::f32;
  const nlohmann::json& compute = state.config.at(key);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (!compute.is_string() || compute.get<std::string>() != name_of(type)) continue;
    return type;
  }
  throw Error(
      "checkpoint: precision.compute = {}: is no type to compute in; use another checkpoint",
      compute.dump());
}

void check_rounding(const parallel::PrecisionConfig& precision) {
  if (precision.rounding == "nearest" || precision.compute == "bf16") return;
  throw ConfigError(
      "precision.rounding", precision.rounding,
      fmt::format("rounds weights to bf16, and precision.compute = {}", precision.compute),
      "use nearest, or precision.compute = bf16");
}

}  // namespace trireme::train
