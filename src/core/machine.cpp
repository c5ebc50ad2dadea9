#include "trireme/core/machine.hpp"

#include <fstream>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "trireme/core/error.hpp"

namespace trireme {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

void require_address_space(std::size_t bytes, std::string_view users) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  void* const probe =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) {
    throw Error(
        "memory: ulimit -v allows {} MiB, and less than {} MiB of it are left for {}; raise it",
        limit.rlim_cur >> 20, bytes >> 20, users);
  }
  ::munmap(probe, bytes);
}

}  // namespace trireme
