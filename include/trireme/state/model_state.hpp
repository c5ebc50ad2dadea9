// Everything that training changes: parameters, their gradients, optimiser state.
#pragma once

#include "trireme/device/memory.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/optim/optimizer.hpp"

namespace trireme::state {

/// Parameters and, for training, gradients: one flat fp32 buffer each, whole on every rank. Views
/// by row of the parameter table stay valid for the life of the state.
class ModelState {
 public:
  ModelState(const model::Transformer& model, bool with_gradients, device::MemoryLedger& ledger);
  const Tensor& parameters() const { return parameters_; }  // [flat_elements]
  const Tensor& gradients() const {
    return gradients_;
  }  // [flat_elements], absent without gradients
  const std::vector<Tensor>& values() const { return values_; }
  const std::vector<Tensor>& gradient_views() const { return gradient_views_; }

 private:
  device::Buffer parameter_buffer_, gradient_buffer_;
  Tensor parameters_, gradients_;
  std::vector<Tensor> values_, gradient_views_;
};

}  // namespace trireme::state
