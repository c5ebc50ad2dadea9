#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>

#include <sys/utsname.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/record.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

/// What may change speed or bits, or places the job: these names and no others, so that no secret
/// gets into a record. Keys of the configuration are in config_provenance.
constexpr std::string_view recorded[] = {
    // The job scripts and schedulers.
    "TRIREME", "TRIREME_SITE", "TRIREME_RANKS", "TRIREME_NODES", "TRIREME_RANKS_PER_NODE",
    "TRIREME_THREADS", "TRIREME_CUDA_WITHOUT", "TRIREME_HARDWARE_THREADS", "TRIREME_GPUS",
    "TRIREME_SLURM_MPI", "TRIREME_MPIRUN", "TRIREME_MPIRUN_STYLE", "TRIREME_LAUNCH_OPTIONS",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME",
    "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME",
    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE",
    "SLURM_DISTRIBUTION", "SLURM_MPI_TYPE", "SLURM_KILL_BAD_EXIT", "SLURM_THREADS_PER_CORE",
    "PBS_JOBID", "PBS_QUEUE", "PBS_NUM_NODES", "LSB_JOBID", "LSB_QUEUE", "LSB_DJOB_NUMPROC",
    "FLUX_JOB_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES",
    // Threads.
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_DYNAMIC", "OMP_WAIT_POLICY",
    "OMP_STACKSIZE", "OMP_THREAD_LIMIT", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY",
    "KMP_BLOCKTIME", "KMP_HW_SUBSET",
    // MPI and networks.
    "OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_osc", "OMPI_MCA_coll",
    "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_mpi_leave_pinned", "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl_tcp_eager_limit",
    "OMPI_MCA_btl_tcp_rndv_eager_limit", "OMPI_MCA_btl_vader_single_copy_mechanism",
    "OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe",
    "MPICH_ASYNC_PROGRESS", "MPICH_GPU_SUPPORT_ENABLED", "MPICH_OFI_NIC_POLICY",
    "MPICH_RANK_REORDER_METHOD", "I_MPI_FABRICS", "I_MPI_PIN", "I_MPI_PIN_DOMAIN",
    "I_MPI_OFI_PROVIDER", "UCX_TLS", "UCX_NET_DEVICES", "UCX_RNDV_THRESH", "UCX_MEMTYPE_CACHE",
    "FI_PROVIDER", "FI_CXI_RX_MATCH_MODE", "FI_CXI_DEFAULT_CQ_SIZE",
    // GPUs.
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET",
    "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS", "NCCL_CUMEM_ENABLE", "NCCL_LAUNCH_ORDER_IMPLICIT",
    // Libraries.
    "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_VERBOSE", "ONEDNN_VERBOSE", "HDF5_USE_FILE_LOCKING",
    "HDF5_PLUGIN_PATH", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_"};

json environment_recorded() {
  json result = json::object();
  for (const std::string_view name : recorded) {
    const std::string key(name);
    if (const char* value = std::getenv(key.c_str())) result[key] = value;
  }
  return result;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    // "model name" on x86, "Processor" or "CPU part" on others.
    for (const std::string_view key : {"model name", "Processor", "CPU part", "cpu\t"}) {
      const std::size_t colon = line.find(':');
      if (line.starts_with(key) && colon != line.npos && colon + 2 <= line.size()) {
        return line.substr(colon + 2);
      }
    }
  }
  return "unknown";
}

json this_host() {
  utsname system{};
  uname(&system);
  return {{"name", host_name()},
          {"cpu", cpu_model()},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE)},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string host_name() {
  utsname system{};
  uname(&system);
  return system.nodename;
}

json provenance(comm::Communicator& world, const json& versions, int root) {
  json mine = this_host();
  if (world.rank() == 0) {
    mine["start"] = utc_now();
    mine["environment"] = environment_recorded();
  }
  json result{{"ranks", world.size()}, {"versions", versions}, {"hosts", json::array()}};
  json& hosts = result["hosts"];  // in the order of their first ranks
  for (json& host : gather_json(mine, world, root)) {
    for (const char* key : {"start", "environment"}) {
      if (!host.contains(key)) continue;
      result[key] = host[key];
      host.erase(key);
    }
    const auto same = std::find_if(hosts.begin(), hosts.end(), [&host](const json& known) {
      return known["name"] == host["name"];
    });
    if (same != hosts.end()) {
      (*same)["ranks"] = (*same)["ranks"].get<int>() + 1;
    } else {
      host["ranks"] = 1;
      hosts.push_back(std::move(host));
    }
  }
  return result;
}

}  // namespace trireme::report
