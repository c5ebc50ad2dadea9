// trireme info
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dnnl.h>
#include <hdf5.h>
#include <unistd.h>

#include "trireme/comm/backend.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/core/machine.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/ops/cuda_ops.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/plan/peak.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* info_examples = R"(Examples:
  trireme info
  mpirun -n 8 trireme info          where the ranks are)";

std::string row(const std::string& key, const std::string& value) { return line(key, value, 20); }

using Names = std::initializer_list<std::pair<unsigned, const char*>>;
std::string name_in(const Names& names, unsigned value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "unknown";
}

std::string thread_level() {
  int level = 0;
  comm::mpi_check(MPI_Query_thread(&level), "MPI_Query_thread");
  return name_in({{MPI_THREAD_SINGLE, "single"},
                  {MPI_THREAD_FUNNELED, "funneled"},
                  {MPI_THREAD_SERIALIZED, "serialized"},
                  {MPI_THREAD_MULTIPLE, "multiple"}},
                 static_cast<unsigned>(level));
}

/// The version of NVIDIA's kernel module; "none" where it is not loaded.
std::string kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') < word.size())
      return word;
  }
  return "none";
}

/// What this process sees of CUDA: the toolkit, and below it its libraries, the driver and each
/// device in a line of its own.
std::string cuda_lines() {
  std::istringstream parts(device::cuda_description());
  std::string part;
  std::getline(parts, part, ';');
  const bool numbered = part.starts_with("CUDA ");
  std::string text = row("CUDA", numbered ? part.substr(5) : part);
  try {
    const std::string libraries = ops::cuda_libraries();
    if (!libraries.empty()) text += row("  libraries", libraries);
  } catch (const Error& error) {  // one that cannot be loaded
    text += row("  libraries", error.what());
  }
  text += row("  kernel driver", kernel_driver());
  for (int index = 0; std::getline(parts, part, ';'); ++index) {
    text += row("  device", part.substr(part.find_first_not_of(' ')) + ", " +
                                device::cuda_device_identity(index));
  }
  return text;
}

/// The least and the most of a number over all ranks, as text. Collective.
struct Span {
  Span(comm::Communicator& world, std::int64_t own)
      : least(-world.all_reduce(-own, comm::Reduction::max)),
        most(world.all_reduce(own, comm::Reduction::max)) {}
  std::string to_string() const {
    return least == most ? std::to_string(most) : fmt::format("{} to {}", least, most);
  }
  std::int64_t least, most;
};

std::string libraries() {
  const nlohmann::json versions = train::versions();
  hbool_t thread_safe = false;
  H5is_library_threadsafe(&thread_safe);
  return row("MPI", versions.at("mpi").get<std::string>()) + row("  thread level", thread_level()) +
         row("HDF5", versions.at("hdf5").get<std::string>() +
                         (thread_safe ? ", thread-safe" : ", not thread-safe (Trireme locks it)")) +
         row("oneDNN", versions.at("onednn").get<std::string>()) +
         row("  threads", name_in({{DNNL_RUNTIME_SEQ, "sequential"},
                                   {DNNL_RUNTIME_OMP, "OpenMP"},
                                   {DNNL_RUNTIME_TBB, "TBB"},
                                   {DNNL_RUNTIME_THREADPOOL, "thread pool"}},
                                  dnnl_version()->cpu_runtime)) +
         row("  instructions", ops::instruction_set()) +
         row("  bf16 products", ops::cpu_bf16_products()) + cuda_lines() +
         row("  GPU messages", comm::describe_direct(comm::mpi_reads_cuda())) +
         row("NCCL", comm::nccl_built_in() ? comm::nccl_library().version() : "not built in");
}

/// The value of the first "key : value" in a file of /proc; empty where there is none.
std::string proc_value(const char* name, const std::string& wanted) {
  std::ifstream file(std::string("/proc/") + name);
  for (std::string text; std::getline(file, text);) {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos || !text.starts_with(wanted)) continue;
    const std::size_t end = text.find_last_not_of(" \t", colon - 1);
    if (end + 1 == wanted.size() && colon + 2 <= text.size()) return text.substr(colon + 2);
  }
  return {};
}

/// Those of the processor's features that decide how fast products are.
std::string cpu_features() {
  std::string flags = proc_value("cpuinfo", "flags");
  if (flags.empty()) flags = proc_value("cpuinfo", "Features");  // Arm
  std::istringstream words(flags);
  std::string chosen;
  for (std::string word; words >> word;) {
    const bool counts = word.starts_with("avx") || word.starts_with("amx") || word == "fma" ||
                        word == "f16c" || word.starts_with("sve") || word == "asimd" ||
                        word == "asimdhp" || word == "bf16" || word == "i8mm";
    if (counts) chosen += (chosen.empty() ? "" : " ") + word;
  }
  return chosen.empty() ? "unknown" : chosen;
}

/// kB of /proc/meminfo as "24.6 GB"; "unknown" where there is none.
std::string memory(const std::string& key) {
  const std::string kilobytes = proc_value("meminfo", key);
  return kilobytes.empty() ? "unknown" : bytes_text(1024 * std::stoll(kilobytes));
}

/// The first line of a file of Linux' sysfs; empty where there is none.
std::string sysfs_line(const std::string& path) {
  std::ifstream file("/sys/devices/system/" + path);
  std::string text;
  std::getline(file, text);
  return text;
}

/// The numbers of a list such as "0-3,8".
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int found = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (found < 1) return {};
    for (int number = first; number <= (found == 2 ? last : first); ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::string topology() {
  const std::vector<int> threads = numbers_of(sysfs_line("cpu/online"));
  if (threads.empty()) return "unknown";
  std::set<std::string> packages, cores;
  for (const int cpu : threads) {
    const std::string folder = fmt::format("cpu/cpu{}/topology/", cpu);
    packages.insert(sysfs_line(folder + "physical_package_id"));
    cores.insert(sysfs_line(folder + "thread_siblings_list"));
  }
  const auto some = [](std::size_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  const std::size_t domains = numbers_of(sysfs_line("node/online")).size();
  return some(packages.size(), "package") + ", " +
         some(std::max<std::size_t>(domains, 1), "NUMA domain") + ", " +
         some(cores.size(), "core") + ", " + some(threads.size(), "hardware thread");
}

std::string machine(const comm::Cores& cores) {
  std::string model = proc_value("cpuinfo", "model name");
  if (model.empty()) model = "unknown";
  return row("host", host_name()) + row("CPU", model) + row("  features", cpu_features()) +
         row("  topology", topology()) +
         row("  usable by rank 0",
             fmt::format("{} core{}, {}", cores.usable, cores.usable == 1 ? "" : "s",
                         cores.ranks == 1 ? std::string("by no other rank")
                                          : fmt::format("by {} ranks in all", cores.ranks))) +
         row("memory", memory("MemTotal") + ", " + memory("MemAvailable") + " available");
}

/// Square products on the host, by one rank alone.
std::string product_speed(int threads) {
  const auto ops = ops::make_cpu_ops(threads);
  const auto speed = [&](DType type) {
    return plan::measure_product(*ops, device::host_device(), type, {2048, 2048, 2048}) / 1e9;
  };
  const double wide = speed(DType::f32), narrow = speed(DType::bf16);
  return fmt::format("{:.0f} GFLOP/s in fp32, {:.0f} in bf16 (2048 cubed)", wide, narrow);
}

void run_info(comm::Session& session) {
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  // Each node's first rank counts for its node.
  const std::int64_t nodes =
      world->all_reduce(std::int64_t{session.node_rank() == 0}, comm::Reduction::sum);
  const Span per_node(*world, session.node_size());
  const Span devices(*world, device::cuda_device_count());
  const int threads = train::threads_of_rank({}, session);
  const std::string warning = comm::core_warning(session, threads);
  if (session.rank() != 0) return;
  const nlohmann::json versions = train::versions();
  std::string compiler = versions.at("compiler").get<std::string>();
  if (compiler.find_first_of("0123456789") == 0)
    compiler = "GCC " + compiler;  // others name themselves
  const std::string text =
      row("trireme", versions.at("trireme").get<std::string>()) +
      row("compiler", fmt::format("{}, C++{}", compiler, __cplusplus / 100 % 100)) + libraries() +
      machine(session.cores()) +
      row("ranks", fmt::format("{} on {} node{}, {} per node", session.size(), nodes,
                               nodes == 1 ? "" : "s", per_node.to_string())) +
      row("GPUs per rank",
          fmt::format("{}: --device auto is {}", devices.most == 0 ? "none" : devices.to_string(),
                      devices.least > 0 ? "cuda" : "cpu")) +
      row("threads per rank", std::to_string(threads)) +
      row("products on CPU", product_speed(threads)) +
      (warning.empty() ? "" : row("warning", warning));
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  CLI::App* info = app.add_subcommand("info", "Versions, processor, memory, ranks");
  info->footer(info_examples);
  info->callback([&command] {
    command.run = [](comm::Session& session, const std::vector<Setting>&) {
      run_info(session);
      return 0;
    };
  });
}

}  // namespace trireme::cli
