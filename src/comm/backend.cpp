#include "trireme/comm/backend.hpp"

#include <map>
#include <vector>

#include <dlfcn.h>

#include "trireme/comm/nccl.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"

#include "requests.hpp"

namespace trireme::comm {
namespace {

struct Asked {
  const char* key;
  const std::string& value;
};

Asked asked(const CommConfig& config, GroupKind kind) {
  switch (kind) {
    case GroupKind::tensor:
    case GroupKind::context:
      return {"comm.tensor", config.tensor};
    case GroupKind::data:
    case GroupKind::shard:
    case GroupKind::replica:
      return {"comm.data", config.data};
    case GroupKind::pipeline:
    case GroupKind::embedding:
      return {"comm.pipeline", config.pipeline};
    default:
      return {"comm.world", config.world};
  }
}

/// Whether Trireme has tensors pass there that are worth it. Those of pipeline channels, which
/// NCCL's order would bring to a standstill, are MPI's always.
bool carries_tensors(GroupKind kind) {
  return kind != GroupKind::pipeline && kind != GroupKind::world && kind != GroupKind::stage &&
         kind != GroupKind::model;
}

/// Throws where `kind` is asked to use shared memory and cannot.
void refuse_shared(const char* key, GroupKind kind, const BackendFacts& facts) {
  if (!facts.is_host) {
    throw ConfigError(
        key, "shared",
        fmt::format("ranks share memory of the host, and the device is {}", facts.device),
        "use auto, nccl or mpi");
  }
  if (!facts.apart.empty()) {
    throw ConfigError(key, "shared",
                      fmt::format("memory is shared inside a node, and of a {} group {}",
                                  name_of(kind), facts.apart),
                      "use auto or mpi");
  }
  if (!facts.no_room.empty()) {
    throw ConfigError(key, "shared", facts.no_room, "make room there, or use auto or mpi");
  }
}

}  // namespace

std::string backend_key(GroupKind kind) {
  static const CommConfig any;
  return asked(any, kind).key;
}

Backend choose_backend(const CommConfig& config, GroupKind kind, const BackendFacts& facts) {
  const auto [key, value] = asked(config, kind);
  if (value == "mpi") return Backend::mpi;
  if (value == "auto") {
    if (!carries_tensors(kind)) return Backend::mpi;
    if (facts.is_host) {
      return facts.apart.empty() && facts.no_room.empty() ? Backend::shared : Backend::mpi;
    }
    return facts.nccl && facts.crowded.empty() ? Backend::nccl : Backend::mpi;
  }
  if (value == "shared") {
    refuse_shared(key, kind, facts);
    return Backend::shared;
  }
  if (facts.is_host) {
    throw ConfigError(key, value,
                      fmt::format("NCCL moves memory of GPUs, and the device is {}", facts.device),
                      "use auto, shared or mpi");
  }
  if (!facts.nccl) {
    throw ConfigError(key, value, "this trireme was built without NCCL", "use auto or mpi");
  }
  if (!facts.crowded.empty()) {
    throw ConfigError(key, value,
                      fmt::format("NCCL needs a GPU for every rank, and of a {} group {}",
                                  name_of(kind), facts.crowded),
                      "start one rank per GPU, or use auto or mpi");
  }
  return Backend::nccl;
}

std::string scattered_ranks(const GridShape& shape, GroupKind kind, int shard,
                            std::span<const int> node_of) {
  const auto node = [&](int rank) { return node_of[static_cast<std::size_t>(rank)]; };
  std::vector<bool> seen(node_of.size());
  for (int rank = 0; rank < static_cast<int>(node_of.size()); ++rank) {
    if (seen[static_cast<std::size_t>(rank)]) continue;
    const std::vector<int> group = members(shape, kind, shard, rank);
    for (const int member : group) {
      seen[static_cast<std::size_t>(member)] = true;
      if (node(member) == node(group.front())) continue;
      return fmt::format("ranks {} and {} are on different nodes", group.front(), member);
    }
  }
  return {};
}

Backends choose_host_backends(const CommConfig& config, const GridShape& shape, int shard,
                              std::span<const int> node_of, const std::string& no_room) {
  Backends backends{};
  for (int index = 0; index < group_kinds; ++index) {
    const auto kind = static_cast<GroupKind>(index);
    const BackendFacts facts{.apart = scattered_ranks(shape, kind, shard, node_of),
                             .no_room = no_room};
    backends.at(static_cast<std::size_t>(index)) = choose_backend(config, kind, facts);
  }
  return backends;
}

std::string crowded_device(std::span<const int> members, std::span<const std::string> devices) {
  std::map<std::string, int> first;
  for (const int rank : members) {
    const std::string& device = devices[static_cast<std::size_t>(rank)];
    if (device.empty()) return fmt::format("rank {} has a device without identity", rank);
    const auto [known, is_new] = first.emplace(device, rank);
    if (!is_new) return fmt::format("ranks {} and {} share {}", known->second, rank, device);
  }
  return {};
}

std::optional<bool> mpi_reads_cuda() {
  // Where these are declared differs between libraries and their versions; their names do not.
  if (void* symbol = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support")) {
    return reinterpret_cast<int (*)()>(symbol)() == 1;
  }
  if (void* symbol = dlsym(RTLD_DEFAULT, "MPIX_GPU_query_support")) {
    constexpr int cuda = 0;  // MPICH's MPIX_GPU_SUPPORT_CUDA
    int supported = 0;
    const int code = reinterpret_cast<int (*)(int, int*)>(symbol)(cuda, &supported);
    return code == MPI_SUCCESS && supported != 0;
  }
  return std::nullopt;
}

bool choose_direct(const std::string& staging, std::optional<bool> library) {
  if (staging == "yes") return false;
  if (staging == "auto") return library.value_or(false);
  if (library == false) {
    throw ConfigError("comm.staging", staging,
                      "the MPI library says that it cannot read the memory of GPUs",
                      "use auto or yes, or an MPI built with CUDA");
  }
  return true;
}

bool message_arrives(device::Device& device, const DeviceMessages& messages) {
  constexpr std::size_t count = 1000;
  device::MemoryLedger ledger(device);
  const device::Buffer from(ledger, device::Use::communication, count);
  const device::Buffer to(ledger, device::Use::communication, count);
  std::vector<std::uint8_t> pattern(count), arrived(count);
  for (std::size_t i = 0; i < count; ++i) pattern[i] = static_cast<std::uint8_t>(i * 7 + 1);
  device::write(device, from.view(DType::u8, {count}), pattern.data());
  device.synchronize();
  std::int64_t sent = 0;
  Requests requests({MPI_COMM_SELF, 0, &sent, &messages.address});
  requests.receive(to.data(), count, 0, 0);
  requests.send(from.data(), count, 0, 0);
  while (!requests.test()) {
  }
  device::read(device, arrived.data(), to.view(DType::u8, {count}));
  return arrived == pattern;
}

std::string describe_direct(std::optional<bool> library) {
  if (!library) return "staged through host memory (the MPI library cannot be asked)";
  return *library ? "given to MPI as it is (the MPI library says it can read it)"
                  : "staged through host memory (the MPI library says it cannot read it)";
}

}  // namespace trireme::comm
