// What train, evaluate and generate build before they start, each part from those before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/grid.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

/// Threads of this rank: parallel.threads, else OMP_NUM_THREADS, else the node's cores over its
/// ranks.
int threads_of_rank(const parallel::ParallelConfig& config, const comm::Session& session);

/// Sequences of one forward on a rank that has `per_rank` in a step: the largest divisor whose
/// tokens stay within about 4,096.
std::int64_t choose_micro_batch(std::int64_t per_rank, std::int64_t sequence);

/// The step folder that `path` means: itself, or the newest one of a run folder. Throws Error.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// The model section of a checkpoint, resolved.
model::ModelConfig model_of(const checkpoint::State& state);

/// Reads every parameter into `parameters` (flat); throws Error for a missing or misshapen one.
void load_parameters(const checkpoint::Reader& reader, const params::ParameterTable& table,
                     const Tensor& parameters);

/// Each row of `flat` as a checkpoint piece named "<prefix>/<row>". Of `replicas` ranks that hold
/// the same values, number `replica` writes the rows that begin in its share of the buffer.
void append_pieces(std::vector<checkpoint::Piece>& pieces, const std::string& prefix,
                   const params::ParameterTable& table, const Tensor& flat, int replica,
                   int replicas);

/// Mean loss over the first `samples` windows (0: all) of a split, in file order; collective over
/// `group`, whose ranks share out the windows.
parallel::LossSum evaluate_split(parallel::Engine& engine, data::TokenReader& reader,
                                 std::int64_t length, std::int64_t samples,
                                 std::int64_t micro_batch, bool document_mask,
                                 comm::Communicator& group);

/// Versions of Trireme and of the libraries that a run's numbers depend on.
nlohmann::json versions();

}  // namespace trireme::train
