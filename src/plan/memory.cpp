#include "trireme/plan/memory.hpp"

#include <algorithm>

#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/ops/cpu_workspace.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/state/buckets.hpp"

namespace trireme::plan {

namespace {

/// What the CPU backend's most demanding call takes.
std::size_t ops_workspace(const model::Transformer& model, const MemoryQuestion& question) {
  const model::ModelConfig& config = model.config();
  const std::int64_t batch = question.rows / question.sequence;
  std::size_t bytes =
      ops::cpu_attention_workspace({batch, question.sequence, question.sequence, config.heads,
                                    config.kv_heads, config.head_size()},
                                   question.threads);
  bytes = std::max(bytes, ops::cpu_row_sum_workspace(question.rows, config.width,
                                                     config.layer_norm() && config.bias ? 2 : 1));
  for (const params::Parameter& row : model.table().rows()) {
    bytes = std::max(bytes, ops::cpu_square_sum_workspace(row.shape.elements()));
    // Biases: the gradient of one is a sum over rows.
    if (config.bias && row.in_products && row.shape[0] != config.vocabulary) {
      bytes = std::max(bytes, ops::cpu_row_sum_workspace(question.rows, row.shape[0], 1));
    }
  }
  return device::aligned(bytes);
}

/// Scratch of the communicators: all groups' agreements, the data axis' buckets.
std::size_t communication_bytes(const model::Transformer& model, const MemoryQuestion& question) {
  std::int64_t largest = 0;
  const auto units = static_cast<int>(model.units().size());
  for (const auto& bucket : state::plan_buckets(model.table(), units, question.bucket_elements)) {
    largest = std::max(largest, bucket.end - bucket.begin);
  }
  return question.grid_bytes +
         comm::scratch_bytes(question.data, static_cast<std::size_t>(largest) * sizeof(float)) -
         comm::scratch_bytes(question.data, 0);
}

}  // namespace

std::map<device::Use, std::int64_t> predict_memory(const model::Transformer& model,
                                                   const MemoryQuestion& question) {
  using device::Use;
  const std::int64_t flat =
      model.table().flat_elements() * static_cast<std::int64_t>(sizeof(float));
  const auto states =
      static_cast<std::int64_t>(optim::Optimizer::state_names(question.optim).size());
  const model::StageLayout layout(model, question.rows);
  return {{Use::parameters, flat},
          {Use::gradients, flat},
          {Use::optimizer, flat * states},
          {Use::stash, static_cast<std::int64_t>(layout.stash_bytes)},
          {Use::workspace,
           static_cast<std::int64_t>(layout.workspace_bytes + ops_workspace(model, question))},
          {Use::communication, static_cast<std::int64_t>(communication_bytes(model, question))}};
}

}  // namespace trireme::plan
