#include "trireme/model/embedding.hpp"

namespace trireme::model {

Embedding::Embedding(params::ParameterTable& table, int unit, const ModelConfig& config)
    : width_(config.width), rate_(static_cast<float>(config.dropout)) {
  params::Parameter token{.name = "embedding.token.weight",
                          .shape = {config.vocabulary, config.width}};
  token.split.dimension = 0;
  token.units = {unit};
  token.decay = true;
  token.in_products = config.tied;  // look-up alone multiplies nothing
  token.initialisation = {params::Initialisation::Kind::normal, config.init_deviation};
  token_ = table.add(token);
  if (config.rotary()) return;
  params::Parameter position{.name = "embedding.position.weight",
                             .shape = {config.sequence, config.width}};
  position.units = {unit};
  position.decay = true;
  position.initialisation = {params::Initialisation::Kind::normal, config.init_deviation};
  position_ = table.add(position);
}

void Embedding::plan(UnitPlan& plan) {
  if (rate_ > 0) delta_ = plan.add(Area::delta, width_);
}

ops::Dropout Embedding::dropout(const UnitContext& context) const {
  return {rate_, {context.seed, Purpose::dropout, 0}};
}

void Embedding::forward(const UnitContext& context, const Tensor& y, const Tensor& /*x*/,
                        const UnitMemory& /*memory*/) const {
  const Microbatch& batch = context.batch;
  const Tensor table =
      position_ >= 0 ? context.values[static_cast<std::size_t>(position_)] : Tensor();
  context.ops.embedding(y, batch.inputs, context.values[static_cast<std::size_t>(token_)],
                        batch.positions.reshape({batch.tokens()}), table);
  if (rate_ > 0 && context.mode == Mode::train)
    context.ops.dropout(y, y, batch.rows, dropout(context));
}

void Embedding::backward_input(const UnitContext& context, const Tensor& /*dx*/, const Tensor& dy,
                               const Tensor& /*x*/, const UnitMemory& memory) const {
  if (rate_ > 0) {
    context.ops.dropout(memory.view(delta_, dy.extent(0)), dy, context.batch.rows,
                        dropout(context));
  }
}

void Embedding::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& /*x*/,
                                const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const Tensor delta = rate_ > 0 ? memory.view(delta_, dy.extent(0)) : dy;
  context.ops.embedding_backward(context.gradients[static_cast<std::size_t>(token_)], batch.inputs,
                                 delta);
  if (position_ >= 0) {
    context.ops.embedding_backward(context.gradients[static_cast<std::size_t>(position_)],
                                   batch.positions.reshape({batch.tokens()}), delta);
  }
}

}  // namespace trireme::model
