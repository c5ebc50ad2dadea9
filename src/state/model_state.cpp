#include "trireme/state/model_state.hpp"

namespace trireme::state {

ModelState::ModelState(const model::Transformer& model, bool with_gradients,
                       device::MemoryLedger& ledger) {
  const std::int64_t elements = model.table().flat_elements();
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  parameter_buffer_ = device::Buffer(ledger, device::Use::parameters, bytes);
  parameters_ = parameter_buffer_.view(DType::f32, {elements});
  values_ = model.views(parameters_);
  if (!with_gradients) return;
  gradient_buffer_ = device::Buffer(ledger, device::Use::gradients, bytes);
  gradients_ = gradient_buffer_.view(DType::f32, {elements});
  gradient_views_ = model.views(gradients_);
}

}  // namespace trireme::state
