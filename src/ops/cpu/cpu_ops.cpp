#include "cpu_ops.hpp"

#include <utility>

#include <dnnl.h>
#include <omp.h>

namespace trireme::ops {

CpuOps::CpuOps(int threads, device::MemoryLedger* ledger, bool reproducible)
    : threads_(threads > 0 ? threads : omp_get_max_threads()),
      reproducible_(reproducible),
      ledger_(ledger != nullptr ? ledger : &own_ledger_),
      visible_(static_cast<std::size_t>(threads_)) {}

std::byte* CpuOps::scratch_bytes(std::size_t bytes) {
  scratch_.grow(*ledger_, device::Use::workspace, bytes, device::host_device());
  return scratch_.data();
}

std::unique_ptr<Ops> make_cpu_ops(int threads, device::MemoryLedger* ledger, bool reproducible) {
  return std::make_unique<CpuOps>(threads, ledger, reproducible);
}

std::string instruction_set() {
  constexpr std::pair<dnnl_cpu_isa_t, const char*> known[] = {
      {dnnl_cpu_isa_sse41, "SSE4.1"},
      {dnnl_cpu_isa_avx, "AVX"},
      {dnnl_cpu_isa_avx2, "AVX2"},
      {dnnl_cpu_isa_avx2_vnni, "AVX2 with VNNI"},
      {dnnl_cpu_isa_avx512_core, "AVX-512"},
      {dnnl_cpu_isa_avx512_core_vnni, "AVX-512 with VNNI"},
      {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 with VNNI, bf16"},
      {dnnl_cpu_isa_avx512_core_amx, "AVX-512 with AMX"}};
  for (const auto& [isa, name] : known) {
    if (isa == dnnl_get_effective_cpu_isa()) return name;
  }
  return "this processor's default";
}

}  // namespace trireme::ops
