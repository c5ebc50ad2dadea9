#include "cpu_ops.hpp"

#include <dnnl.h>
#include <omp.h>

namespace trireme::ops {

CpuOps::CpuOps(int threads, device::MemoryLedger* ledger, bool reproducible)
    : threads_(threads > 0 ? threads : omp_get_max_threads()),
      product_threads_(reproducible ? 1 : threads_),
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
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
      return "AVX2 with VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 with VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 with VNNI, bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AVX-512 with AMX";
    default:
      return "this processor's default";
  }
}

}  // namespace trireme::ops
