// NCCL where Trireme was built without it.
#include "trireme/comm/nccl.hpp"
#include "trireme/core/error.hpp"

namespace trireme::comm {

bool nccl_built_in() { return false; }

NcclApi& nccl_library() {
  throw Error("nccl: this trireme was built without NCCL; use comm.… = auto or mpi");
}

}  // namespace trireme::comm
