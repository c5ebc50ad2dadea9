#include "trireme/model/embedding.hpp"

namespace trireme::model {

Embedding::Embedding(params::ParameterTable& table, int unit, const ModelConfig& config)
    : vocabulary_(config.vocabulary),
      width_(config.width),
      rate_(static_cast<float>(config.dropout)) {
  params::Parameter token{.name = "embedding.token.weight",
                          .shape = {config.vocabulary, config.width}};
  token.split.dimension = 0;
  token.units = {unit};
  token.decay = true;
  token.in_products = config.tied;  // look-up alone multiplies nothing
  token.initialization = {params::Initialization::Kind::normal, config.init_deviation};
  token_ = table.add(token);
  if (config.rotary()) return;
  params::Parameter position{.name = "embedding.position.weight",
                             .shape = {config.sequence, config.width}};
  position.units = {unit};
  position.decay = true;
  position.initialization = {params::Initialization::Kind::normal, config.init_deviation};
  position_ = table.add(position);
}

void Embedding::plan(UnitPlan& plan) {
  partial_.plan(plan, width_);
  if (rate_ > 0 || plan.shares().sequence_parallel) {
    delta_ = plan.add(plan.between(), plan.rows(), width_);
  }
}

ops::Dropout Embedding::dropout(const UnitContext& context) const {
  return {rate_, {context.seed, Purpose::dropout, 0}};
}

ops::RowTile Embedding::tile(const UnitContext& context, int local) const {
  const params::Tiles& tiles = context.shares.tiles;
  return {params::tile_of(vocabulary_, tiles.first + local, tiles.all).begin, vocabulary_};
}

void Embedding::forward(const UnitContext& context, const Tensor& y, const Tensor& /*x*/,
                        const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const Tensor partial = partial_.view(context, y, memory);
  // Each token's row is in one tile, so that the sum over tiles is exact in any order.
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    context.ops.embedding(partial, batch.inputs, context.values(token_, i), tile(context, i),
                          i == 0 ? ops::Lookup::write : ops::Lookup::fill_in);
  }
  leave_region(context, y, partial);
  if (position_ >= 0) {
    context.ops.embedding(y, own_rows(context, batch.positions.reshape({batch.tokens()})),
                          context.values(position_), {}, ops::Lookup::add);
  }
  if (rate_ > 0 && context.mode == Mode::train) {
    context.ops.dropout(y, y, own_rows(context, batch.rows), dropout(context));
  }
}

Tensor Embedding::delta(const UnitContext& context, const Tensor& dy,
                        const UnitMemory& memory) const {
  const bool copied = rate_ > 0 || context.shares.sequence_parallel;
  return copied ? memory.view(delta_, context.batch.tokens()) : dy;
}

void Embedding::backward_input(const UnitContext& context, const Tensor& /*dx*/, const Tensor& dy,
                               const Tensor& /*x*/, const UnitMemory& memory) const {
  const Tensor whole = delta(context, dy, memory);
  if (rate_ > 0) {
    context.ops.dropout(own_rows(context, whole), dy, own_rows(context, context.batch.rows),
                        dropout(context));
  } else if (whole.data() != dy.data()) {
    context.ops.copy(own_rows(context, whole), dy);
  }
  leave_region_backward(context, whole);
}

void Embedding::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& /*x*/,
                                const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const Tensor whole = delta(context, dy, memory);
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    context.ops.embedding_backward(context.gradients(token_, i), batch.inputs, whole,
                                   tile(context, i));
  }
  if (position_ < 0) return;
  const Tensor own = own_rows(context, whole);
  const Tensor positions = own_rows(context, batch.positions.reshape({batch.tokens()}));
  for_each_row_tile(context, [&](int copy, std::int64_t begin, std::int64_t end) {
    context.ops.embedding_backward(context.gradients(position_, copy),
                                   positions.slice(0, begin, end), own.slice(0, begin, end));
  });
}

}  // namespace trireme::model
