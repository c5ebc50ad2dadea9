#include "trireme/comm/backend.hpp"

#include <array>
#include <chrono>
#include <map>
#include <numeric>
#include <vector>

#include <dlfcn.h>

#include "trireme/comm/nccl.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/error.hpp"

#include "operations.hpp"
#include "requests.hpp"

namespace trireme::comm {
namespace {

/// A key of the configuration and its value.
struct Setting {
  const char* key;
  const std::string& value;
};

Setting setting_of(const CommConfig& config, GroupKind kind) {
  switch (kind) {
    case GroupKind::tensor:
    case GroupKind::context:
    case GroupKind::kv:
      return {"comm.tensor", config.tensor};
    case GroupKind::data:
    case GroupKind::shard:
    case GroupKind::replica:
      return {"comm.data", config.data};
    case GroupKind::pipeline:
    case GroupKind::embedding:
      return {"comm.pipeline", config.pipeline};
    case GroupKind::world:
    case GroupKind::stage:
    case GroupKind::model:
      return {"comm.world", config.world};
    case GroupKind::count:
      break;
  }
  no_case_for(kind);
}

/// Whether `auto` may choose another backend than MPI: few bytes pass there, and between pipeline
/// stages no GPU has shown what NCCL gains.
bool carries_tensors(GroupKind kind) {
  return kind != GroupKind::pipeline && kind != GroupKind::world && kind != GroupKind::stage &&
         kind != GroupKind::model;
}

/// The first two ranks of `group` that are on different nodes; else empty.
std::string apart(const std::vector<int>& group, const std::vector<int>& node_of) {
  for (const int rank : group) {
    if (node_of[static_cast<std::size_t>(rank)] ==
        node_of[static_cast<std::size_t>(group.front())]) {
      continue;
    }
    return fmt::format("ranks {} and {} are on different nodes", group.front(), rank);
  }
  return {};
}

/// The first two ranks of `group` that have one device, or one whose device has no identity; else
/// empty.
std::string crowded(const std::vector<int>& group, const std::vector<int>& device_of) {
  std::map<int, int> first;
  for (const int rank : group) {
    const int device = device_of[static_cast<std::size_t>(rank)];
    if (device < 0) return fmt::format("rank {} has a device without identity", rank);
    const auto [known, is_new] = first.emplace(device, rank);
    if (!is_new) return fmt::format("ranks {} and {} share a device", known->second, rank);
  }
  return {};
}

/// The first complaint about a group of `kind` of more than one rank; else empty.
template <class Complaint>
std::string first_complaint(const GridShape& shape, GroupKind kind, const Complaint& complaint) {
  std::vector<bool> seen(static_cast<std::size_t>(shape.size()));
  for (int rank = 0; rank < shape.size(); ++rank) {
    if (seen[static_cast<std::size_t>(rank)]) continue;
    if (group_size(shape, kind, rank) == 1) continue;
    const std::vector<int> group = members(shape, kind, rank);
    for (const int member : group) seen[static_cast<std::size_t>(member)] = true;
    if (std::string text = complaint(group); !text.empty()) return text;
  }
  return {};
}

/// The facts as they are for the groups of one kind.
struct KindFacts {
  const BackendFacts& machine;
  std::string apart;    // two ranks of a group that do not share memory
  std::string crowded;  // two ranks of a group that share a device
};

void require_shared(const char* key, GroupKind kind, const KindFacts& facts) {
  if (!facts.machine.is_host) {
    throw ConfigError(
        key, "shared",
        fmt::format("ranks share memory of the host, and the device is {}", facts.machine.device),
        "use auto, nccl or mpi");
  }
  if (!facts.apart.empty()) {
    throw ConfigError(key, "shared",
                      fmt::format("memory is shared inside a node, and of a {} group {}",
                                  name_of(kind), facts.apart),
                      "use auto or mpi");
  }
  if (!facts.machine.no_space.empty()) {
    throw ConfigError(key, "shared", facts.machine.no_space,
                      "free space there, or use auto or mpi");
  }
}

void require_nccl(const char* key, GroupKind kind, const KindFacts& facts) {
  if (facts.machine.is_host) {
    throw ConfigError(
        key, "nccl",
        fmt::format("NCCL moves memory of GPUs, and the device is {}", facts.machine.device),
        "use auto, shared or mpi");
  }
  if (!facts.machine.nccl) {
    throw ConfigError(key, "nccl", "this trireme was built without NCCL", "use auto or mpi");
  }
  if (!facts.crowded.empty()) {
    throw ConfigError(key, "nccl",
                      fmt::format("NCCL needs a GPU for every rank, and of a {} group {}",
                                  name_of(kind), facts.crowded),
                      "start one rank per GPU, or use auto or mpi");
  }
}

Backend choose_backend(const CommConfig& config, GroupKind kind, const KindFacts& facts) {
  const auto [key, value] = setting_of(config, kind);
  if (value == "auto") {
    if (!carries_tensors(kind)) return Backend::mpi;
    if (facts.machine.is_host) {
      return facts.apart.empty() && facts.machine.no_space.empty() ? Backend::shared : Backend::mpi;
    }
    return facts.machine.nccl && facts.crowded.empty() ? Backend::nccl : Backend::mpi;
  }
  if (value == "mpi") return Backend::mpi;
  if (value == "shared") {
    require_shared(key, kind, facts);
    return Backend::shared;
  }
  if (value == "nccl") {
    require_nccl(key, kind, facts);
    return Backend::nccl;
  }
  throw ConfigError(key, value, "is no backend", "use auto, nccl, shared or mpi");
}

}  // namespace

std::string_view name_of(Backend backend) {
  switch (backend) {
    case Backend::mpi:
      return "mpi";
    case Backend::nccl:
      return "nccl";
    case Backend::shared:
      return "shared";
  }
  no_case_for(backend);
}

std::string backend_key(GroupKind kind) {
  static const CommConfig any;
  return setting_of(any, kind).key;
}

Backends choose_backends(const CommConfig& config, const GridShape& shape,
                         const BackendFacts& facts) {
  Backends backends;
  for (const GroupKind kind : all_group_kinds) {
    KindFacts own{facts, {}, {}};
    if (facts.is_host && !facts.node_of.empty()) {
      own.apart = first_complaint(
          shape, kind, [&](const std::vector<int>& group) { return apart(group, facts.node_of); });
    }
    if (facts.nccl) {
      own.crowded = first_complaint(shape, kind, [&](const std::vector<int>& group) {
        return crowded(group, facts.device_of);
      });
    }
    backends[kind] = choose_backend(config, kind, own);
  }
  return backends;
}

bool devices_differ(const BackendFacts& facts) {
  std::vector<int> world(facts.device_of.size());
  std::iota(world.begin(), world.end(), 0);
  return crowded(world, facts.device_of).empty();
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
  if (staging != "no")
    throw ConfigError("comm.staging", staging, "is no choice", "use auto, yes or no");
  if (library == false) {
    throw ConfigError("comm.staging", staging,
                      "the MPI library reports that it cannot read the memory of GPUs",
                      "use auto or yes, or an MPI built with CUDA");
  }
  return true;
}

bool messages_arrive(device::Device& device, const DeviceMessages& messages, MPI_Comm ranks) {
  // Of its own: what is still under way after a failure takes no other message.
  MPI_Comm own = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(ranks, &own), "MPI_Comm_dup");
  const MpiHandle group(own);
  const int size = group.size(), rank = group.rank();
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  bool all = true;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const std::int64_t count : {std::int64_t{1000}, std::int64_t{1} << 20}) {
    const auto pattern_of = [&](int of) {
      std::vector<std::uint8_t> pattern(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < pattern.size(); ++i) {
        pattern[i] = static_cast<std::uint8_t>(i % 251 * 7 + static_cast<std::size_t>(of) + 1);
      }
      return pattern;
    };
    device::MemoryLedger ledger(device);
    const auto bytes = static_cast<std::size_t>(count);
    const device::Buffer from(ledger, device::Use::communication, bytes);
    const device::Buffer to(ledger, device::Use::communication, bytes);
    std::vector<std::uint8_t> arrived(bytes);
    device::write(device, from.view(DType::u8, {count}), pattern_of(rank).data());
    device.synchronize();
    try {
      Requests requests({.comm = group.comm(), .address = &messages.address});
      requests.receive(to.data(), bytes, previous, 0);
      requests.send(from.data(), bytes, next, 0);
      while (!requests.test()) {
        if (std::chrono::steady_clock::now() > late) return false;  // the neighbor's has failed
      }
    } catch (const Error&) {  // the library refuses the memory
      return false;
    }
    device::read(device, arrived.data(), to.view(DType::u8, {count}));
    // The neighbors' second messages come all the same.
    all = all && arrived == pattern_of(previous);
  }
  return all;
}

std::string describe_direct(std::optional<bool> library) {
  if (!library) return "staged through host memory (the MPI library cannot be asked)";
  return *library ? "given to MPI as it is (the MPI library reports that it can read it)"
                  : "staged through host memory (the MPI library reports that it cannot read it)";
}

}  // namespace trireme::comm
