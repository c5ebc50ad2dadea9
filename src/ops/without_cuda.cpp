#include "trireme/core/error.hpp"
#include "trireme/ops/cuda_ops.hpp"

namespace trireme::ops {

std::unique_ptr<Ops> make_cuda_ops(device::Device&, const CudaOpsOptions&) {
  throw Error(
      "CUDA operations: this trireme was built without CUDA; use --device cpu, or build it where "
      "CUDA is found (-DTRIREME_CUDA=ON)");
}
std::string cuda_libraries() { return {}; }

}  // namespace trireme::ops
