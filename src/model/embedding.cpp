#include "trireme/model/embedding.hpp"

namespace trireme::model {

Embedding::Embedding(params::ParameterTable& table, int unit, const ModelConfig& config)
    : vocabulary_(config.vocabulary), width_(config.width), dropout_(config.dropout, 0) {
  params::Parameter token{.name = "embedding.token.weight",
                          .shape = {config.vocabulary, config.width}};
  token.split = 0;
  token.units = {unit};
  token.decay = true;
  token.in_products = config.tied;  // a look-up multiplies nothing
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
  dropout_.plan(plan, width_);
}

ops::RowTile Embedding::tile(const UnitContext& context, int local) const {
  const params::Tiles& tiles = context.shares.tiles;
  return {params::tile_of(vocabulary_, tiles.first + local, tiles.all).begin, vocabulary_};
}

Tensor Embedding::local_positions(const UnitContext& context) const {
  return context.local(context.batch.positions.reshape({context.batch.tokens()}));
}

void Embedding::forward(const UnitContext& context, const Tensor& y, const Tensor& /*x*/) const {
  const Summand partial = partial_.of(context, y);
  // Each token's row is in one tile: the sum over tiles is exact in any order.
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    context.ops.embedding(partial.value, context.batch.inputs, context.values(token_, i),
                          tile(context, i), i == 0 ? ops::Lookup::write : ops::Lookup::fill_in);
  }
  sum_rows(context, y, partial.value);
  if (position_ >= 0) {
    context.ops.embedding(y, local_positions(context), context.values(position_), {},
                          ops::Lookup::add);
  }
  dropout_.forward(context, y);
}

void Embedding::backward(const UnitContext& context, BackwardPart part, const Tensor& /*dx*/,
                         const Tensor& dy, const Tensor& /*x*/) const {
  const Tensor full = dropout_.backward(context, part, dy);
  if (!has_weight(part)) return;
  for (int i = 0; i < context.shares.tiles.count; ++i) {
    context.ops.embedding_backward(context.gradients(token_, i), context.batch.inputs, full,
                                   tile(context, i));
  }
  if (position_ < 0) return;
  const Tensor local = context.local(full), positions = local_positions(context);
  for_each_row_tile(context, [&](int copy, std::int64_t begin, std::int64_t end) {
    context.ops.embedding_backward(context.gradients(position_, copy),
                                   positions.slice(0, begin, end), local.slice(0, begin, end));
  });
}

}  // namespace trireme::model
