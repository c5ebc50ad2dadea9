#include "trireme/plan/memory.hpp"

#include "trireme/optim/optimizer.hpp"

namespace trireme::plan {

std::map<device::Use, std::int64_t> predict_memory(const model::Transformer& model,
                                                   const MemoryQuestion& question) {
  using device::Use;
  const std::int64_t flat =
      model.table().flat_elements() * static_cast<std::int64_t>(sizeof(float));
  const model::StageLayout layout(model, question.rows);
  return {{Use::parameters, flat},
          {Use::gradients, flat},
          {Use::optimizer,
           flat * static_cast<std::int64_t>(optim::Optimizer::state_names(question.optim).size())},
          {Use::stash, static_cast<std::int64_t>(layout.stash_bytes)},
          {Use::workspace, static_cast<std::int64_t>(layout.workspace_bytes)}};
}

}  // namespace trireme::plan
