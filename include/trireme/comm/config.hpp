// The configuration section "comm": what carries the messages of each axis.
#pragma once

#include <string>

#include "trireme/core/config.hpp"

namespace trireme::comm {

struct CommConfig {
  // Of groups along an axis: tensor (and context); data with its shard and replica groups; pipeline
  // with the embedding group, and its channels where it is nccl; world with stage and model groups.
  std::string tensor = "auto", data = "auto", pipeline = "auto", world = "auto";
  std::string staging = "auto";

  void declare(config::Fields& fields) {
    const auto backend = config::one_of({"auto", "nccl", "shared", "mpi"});
    fields.add(
        "tensor", tensor,
        "what carries tensors between tensor ranks: nccl, shared memory, mpi; auto: nccl where "
        "every rank of a group has a GPU of its own, shared where CPUs of one node compute",
        backend);
    fields.add("data", data, "the same between data ranks", backend);
    fields.add("pipeline", pipeline,
               "the same of tied embeddings' gradients between first and last stage; with nccl "
               "also of messages between stages, which go by MPI otherwise",
               backend);
    fields.add("world", world,
               "the same in groups over several axes, which exchange only a few bytes: auto is mpi",
               backend);
    fields.add("staging", staging,
               "MPI messages of GPU memory: by way of host memory (yes), given to MPI as they are "
               "(no); auto: as the MPI library reports",
               config::one_of({"auto", "yes", "no"}));
  }
};

}  // namespace trireme::comm
