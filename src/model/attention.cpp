#include <cmath>

#include "trireme/model/block.hpp"

namespace trireme::model {

namespace {

/// `count` heads from head `first` of rows [R, heads·D] as [B, T, count, D].
Tensor heads_of(const Tensor& x, const Microbatch& batch, std::int64_t first, std::int64_t count,
                std::int64_t head_size) {
  const std::int64_t row = x.stride(0);
  const std::size_t offset = static_cast<std::size_t>(first * head_size) * size_of(x.type());
  return {static_cast<std::byte*>(x.data()) + offset,
          x.type(),
          {batch.sequences, batch.length, count, head_size},
          {batch.length * row, row, head_size, 1}};
}

ops::AttentionMask causal_mask(const Microbatch& batch) {
  return {.causal = true,
          .query_positions = batch.positions,
          .key_positions = batch.positions,
          .query_documents = batch.documents,
          .key_documents = batch.documents,
          .plain = batch.plain};
}

}  // namespace

Attention::Attention(params::ParameterTable& table, int unit, const std::string& name,
                     const ModelConfig& config, int layer)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_size_(config.head_size()),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_size())))),
      rate_(static_cast<float>(config.attention_dropout)),
      layer_(layer),
      sequence_(config.sequence) {
  const std::int64_t kv_width = kv_heads_ * head_size_, share = heads_ / kv_heads_;
  in_ = ColumnParallel(table, unit, name + ".qkv", config.width, config.qkv_width(),
                       {.bias = config.bias,
                        .deviation = config.init_deviation,
                        .parts = {{"q", config.width, head_size_, 1},
                                  {"k", kv_width, head_size_, share},
                                  {"v", kv_width, head_size_, share}}});
  out_ = RowParallel(table, unit, name + ".out", config.width, config.width,
                     {.bias = config.bias,
                      .deviation = config.residual_deviation(),
                      .parts = {{"heads", config.width, head_size_, 1}}});
}

Attention::TileHeads Attention::heads_of_tile(std::int64_t heads, std::int64_t kv_heads,
                                              const params::Tiles& tiles, int tile) {
  const params::Range query = params::tile_of(heads, tiles.first + tile, tiles.all);
  const std::int64_t share = heads / kv_heads, first = query.begin / share;
  if (query.size() == 0) return {query, {first, first}};
  return {query, {first, (query.end + share - 1) / share}};
}

int Attention::kv_ranks(const ModelConfig& config, int ranks, int tiles, bool reproducible) {
  if (config.kv_heads < 1 || config.heads % config.kv_heads != 0)
    return ranks;  // resolve() refuses
  const std::int64_t share = config.heads / config.kv_heads;
  const auto fits = [&](int size) {
    for (int rank = size; rank < ranks; rank += size) {
      if (params::tile_of(config.heads, rank * tiles / ranks, tiles).begin % share != 0)
        return false;
    }
    return true;
  };
  for (int size = 1; size < ranks; ++size) {
    const bool is_power = (size & (size - 1)) == 0;
    if (ranks % size == 0 && (is_power || !reproducible) && fits(size)) return size;
  }
  return ranks;
}

std::vector<std::int64_t> Attention::key_widths(const ModelConfig& config,
                                                const params::Tiles& tiles) {
  std::vector<std::int64_t> widths;
  for (int i = 0; i < tiles.count; ++i) {
    const TileHeads heads = heads_of_tile(config.heads, config.kv_heads, tiles, i);
    widths.push_back(heads.key.size() * config.head_size());
  }
  return widths;
}

void Attention::plan(UnitPlan& plan) {
  const params::Tiles& tiles = plan.shares().tiles;
  const std::vector<std::int64_t> qkv = in_.widths(tiles);
  std::vector<std::int64_t> mixed, heads;
  for (int i = 0; i < tiles.count; ++i) {
    heads.push_back(heads_of_tile(heads_, kv_heads_, tiles, i).query.size());
    mixed.push_back(heads.back() * head_size_);
  }
  first_ = plan.keep_tiles(RecomputeCost::high, plan.rows(), qkv);
  middle_ = plan.keep_tiles(RecomputeCost::medium, plan.rows(), mixed);
  lse_ = plan.keep_tiles(RecomputeCost::medium, plan.rows(), heads, DType::f32);
  dfirst_ = plan.add_tiles(plan.between(), plan.rows(), qkv);
}

void Attention::plan_inner(UnitPlan& plan) {
  if (plan.shares().context.cuts()) plan_exchange(plan);
  plan_dmiddle(plan);  // last, since every call uses it
}

Attention::Heads Attention::split(const Tensor& qkv, const Microbatch& batch,
                                  const TileHeads& heads) const {
  const std::int64_t queries = heads.query.size(), keys = heads.key.size();
  return {heads_of(qkv, batch, 0, queries, head_size_),
          heads_of(qkv, batch, queries, keys, head_size_),
          heads_of(qkv, batch, queries + keys, keys, head_size_)};
}

ops::HeadSlice Attention::slice(const TileHeads& heads) const {
  return {heads.query.begin, heads_, heads_ / kv_heads_};
}

void Attention::rotate(const UnitContext& context, const Tensor& qkv, const TileHeads& heads,
                       bool inverse) const {
  if (!context.frequencies) return;
  const std::int64_t rows = qkv.extent(0);
  const Tensor turned(qkv.data(), qkv.type(),
                      {rows, heads.query.size() + heads.key.size(), head_size_},
                      {qkv.stride(0), head_size_, 1, 0});
  context.ops.rotary(turned, context.batch.positions.reshape({rows}), context.frequencies, inverse);
}

ops::Dropout Attention::dropout(const UnitContext& context) const {
  const float rate = context.mode == Mode::train ? rate_ : 0.0F;
  return {rate, {context.seed, Purpose::dropout, static_cast<std::uint32_t>(3 * layer_ + 1)}};
}

void Attention::project_in(const UnitContext& context, const Tensor& x) const {
  const std::vector<Tensor> qkv = context.full(first_);
  in_.forward(context, qkv, x);
  for (std::size_t i = 0; i < qkv.size(); ++i) {
    if (qkv[i].elements() == 0) continue;
    rotate(context, qkv[i],
           heads_of_tile(heads_, kv_heads_, context.shares.tiles, static_cast<int>(i)), false);
  }
}

Tensor Attention::log_sums(const UnitContext& context, std::size_t tile) const {
  const Tensor lse = context.full(lse_[tile]);
  return lse.reshape({context.batch.sequences, lse.extent(1), context.batch.length});
}

void Attention::attend(const UnitContext& context) const {
  const Microbatch& batch = context.batch;
  std::vector<ops::AttentionHeads> calls;
  for (std::size_t i = 0; i < first_.size(); ++i) {
    const int tile = static_cast<int>(i);
    const TileHeads own = heads_of_tile(heads_, kv_heads_, context.shares.tiles, tile);
    const std::int64_t count = own.query.size();
    if (count == 0) continue;
    const Heads heads = split(context.full(first_[i]), batch, own);
    const Tensor out = heads_of(context.full(middle_[i]), batch, 0, count, head_size_);
    const Tensor lse = log_sums(context, i);
    if (context.cache != nullptr) {
      attend_cached(context, tile, out, lse, heads, slice(own));
    } else {
      calls.push_back({out, lse, heads.q, heads.k, heads.v, slice(own)});
    }
  }
  context.ops.independent_attention(calls, causal_mask(batch), scale_, dropout(context),
                                    batch.samples);
}

void Attention::attend_cached(const UnitContext& context, int tile, const Tensor& out,
                              const Tensor& lse, const Heads& heads,
                              const ops::HeadSlice& slice) const {
  KeyValueCache& cache = *context.cache;
  const Tensor& keys = cache.keys[static_cast<std::size_t>(tile)];
  const Tensor& values = cache.values[static_cast<std::size_t>(tile)];
  const std::int64_t fresh = context.batch.length;
  const std::int64_t total = cache.length + fresh;
  const std::int64_t groups = heads.k.extent(2), width = groups * head_size_;
  const auto rows = [&](const Tensor& x) {
    return Tensor(x.data(), x.type(), {fresh, width}, {x.stride(1), 1, 0, 0});
  };
  context.ops.copy(keys.slice(0, cache.length, total), rows(heads.k));
  context.ops.copy(values.slice(0, cache.length, total), rows(heads.v));
  const auto all = [&](const Tensor& x) {
    return Tensor(x.data(), x.type(), {1, total, groups, head_size_});
  };
  const ops::AttentionMask mask{
      true, context.batch.positions, cache.positions.slice(1, 0, total), {}, {}};
  context.ops.attention(out, lse, heads.q, all(keys), all(values), mask, scale_, {}, {}, slice);
}

void Attention::attend(std::span<const UnitContext* const> calls) const {
  if (calls.front()->shares.context.cuts()) return attend_pairs(calls);
  for (const UnitContext* context : calls) attend(*context);
}

void Attention::backward_output_weight(const UnitContext& context, const Tensor& dy) const {
  out_.backward_weight(context, dy, context.full(middle_));
}

void Attention::backward_inner(const UnitContext& context, const Tensor& dy) const {
  out_.backward_input(context, context.full(dmiddle_), dy);
}

void Attention::attend_backward(std::span<const UnitContext* const> calls) const {
  if (calls.front()->shares.context.cuts()) attend_pairs_backward(calls);
  for (const UnitContext* context : calls) {
    if (!context->shares.context.cuts()) attend_backward(*context);
    const std::vector<Tensor> dqkv = context->full(dfirst_);
    for (std::size_t i = 0; i < dqkv.size(); ++i) {
      if (dqkv[i].elements() == 0) continue;
      rotate(*context, dqkv[i],
             heads_of_tile(heads_, kv_heads_, context->shares.tiles, static_cast<int>(i)), true);
    }
  }
}

void Attention::attend_backward(const UnitContext& context) const {
  const Microbatch& batch = context.batch;
  const std::vector<Tensor> dmixed = context.full(dmiddle_), dqkv = context.full(dfirst_);
  std::vector<ops::AttentionHeads> calls;
  for (std::size_t i = 0; i < dqkv.size(); ++i) {
    const TileHeads own =
        heads_of_tile(heads_, kv_heads_, context.shares.tiles, static_cast<int>(i));
    const std::int64_t count = own.query.size();
    if (count == 0) continue;
    const auto of_queries = [&](const Tensor& x) {
      return heads_of(x, batch, 0, count, head_size_);
    };
    const Heads heads = split(context.full(first_[i]), batch, own);
    const Heads dheads = split(dqkv[i], batch, own);
    calls.push_back({of_queries(context.full(middle_[i])), log_sums(context, i), heads.q, heads.k,
                     heads.v, slice(own), dheads.q, dheads.k, dheads.v, of_queries(dmixed[i])});
  }
  context.ops.independent_attention_backward(calls, causal_mask(batch), scale_, dropout(context),
                                             batch.samples);
}

}  // namespace trireme::model
