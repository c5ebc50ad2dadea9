// Shared by tests of parameter servers: models split in many parts, groups of ranks, calls.
#pragma once

#include <string>

#include <mpi.h>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/error.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/model/transformer.hpp"

namespace trireme::data_parallel::test {

/// Odd sizes; every group but the smallest has several norm blocks, so that each of three servers
/// holds some.
inline model::ModelConfig served_model(bool tied) {
  model::ModelConfig config;
  config.layers = 2;
  config.width = 60;
  config.heads = 3;
  config.vocabulary = 211;
  config.sequence = 11;
  config.tied = tied;
  if (!tied) {
    config.norm = "rmsnorm";
    config.position = "rotary";
    config.activation = "swiglu";
    config.hidden = 94;
    config.bias = false;
  }
  config.resolve();
  return config;
}

inline parallel::StageOptions served_options(int workers, int global_batch, bool reproducible) {
  parallel::StageOptions options;
  options.place.data = options.place.shard = workers;
  options.micro_batches = global_batch / workers;
  options.served = true;
  options.reproducible = reproducible;
  return options;
}

inline optim::OptimConfig served_optimizer() {
  optim::OptimConfig optim;
  optim.learning_rate = 3e-3;
  return optim;
}

/// A communicator of some ranks, freed with its object.
class Split {
 public:
  Split(MPI_Comm parent, bool in, int color = 0) {
    int rank = 0;
    MPI_Comm_rank(parent, &rank);
    MPI_Comm_split(parent, in ? color : MPI_UNDEFINED, rank, &comm_);
  }
  Split(const Split&) = delete;
  Split& operator=(const Split&) = delete;
  ~Split() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// The outcome of a call.
template <class Reply>
std::string fault_of(const comm::rpc::Future<Reply>& future) {
  try {
    future.get();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace trireme::data_parallel::test
