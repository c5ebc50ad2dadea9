#include <algorithm>
#include <chrono>
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

constexpr std::string_view chosen[] = {"TRIREME_", "SLURM_", "PBS_",    "LSB_",      "FLUX_",
                                       "OMP_",     "GOMP_",  "KMP_",    "OMPI_MCA_", "MPICH_",
                                       "I_MPI_",   "UCX_",   "FI_",     "NCCL_",     "CUDA_",
                                       "CUBLAS_",  "DNNL_",  "ONEDNN_", "HDF5_",     "MALLOC_"};
// Variables that Open MPI's launcher sets for its ranks.
constexpr std::string_view launcher[] = {"OMPI_MCA_orte_",   "OMPI_MCA_ess",
                                         "OMPI_MCA_pmix",    "OMPI_MCA_prte",
                                         "OMPI_MCA_initial", "OMPI_MCA_mpi_oversubscribe"};
// SLURM_JWT, for one, lets its holder act as the user.
constexpr std::string_view secret[] = {"TOKEN", "JWT", "SECRET", "KEY", "PASS", "CRED", "AUTH"};

bool wanted(std::string_view name) {
  const auto begins = [name](std::string_view prefix) { return name.starts_with(prefix); };
  const auto holds = [name](std::string_view word) { return name.find(word) != name.npos; };
  return std::any_of(std::begin(chosen), std::end(chosen), begins) &&
         std::none_of(std::begin(launcher), std::end(launcher), begins) &&
         std::none_of(std::begin(secret), std::end(secret), holds);
}

json environment_chosen() {
  json result = json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == text.npos || !wanted(text.substr(0, equals))) continue;
    result[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
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
  return {{"name", system.nodename},
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

json provenance(comm::Communicator& world, const json& versions) {
  json mine = this_host();
  if (world.rank() == 0) {
    mine["start"] = utc_now();
    mine["environment"] = environment_chosen();
  }
  json result{{"ranks", world.size()}, {"versions", versions}, {"hosts", json::array()}};
  json& hosts = result["hosts"];  // in the order of their first ranks
  for (const std::string& each : world.all_gather_texts(json_text(mine))) {
    json host = json::parse(each);
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
