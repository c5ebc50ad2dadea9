#include "trireme/model/attention.hpp"

#include <cmath>

namespace trireme::model {

namespace {

/// `count` heads from head `first` of rows [R, heads·D] as [B, T, count, D].
Tensor heads_of(const Tensor& x, const Microbatch& batch, std::int64_t first, std::int64_t count,
                std::int64_t head_size) {
  const std::int64_t row = x.stride(0);
  return {x.as<float>() + first * head_size,
          DType::f32,
          {batch.sequences, batch.length, count, head_size},
          {batch.length * row, row, head_size, 1}};
}

}  // namespace

Attention::Attention(params::ParameterTable& table, int unit, const std::string& name,
                     const ModelConfig& config, int layer, const Tensor& frequencies)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_size_(config.head_size()),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_size())))),
      rate_(static_cast<float>(config.attention_dropout)),
      layer_(layer),
      frequencies_(frequencies) {
  const std::int64_t kv_width = kv_heads_ * head_size_;
  qkv_ = Linear(table, unit, name + ".qkv", config.width, config.qkv_width(),
                {.bias = config.bias,
                 .deviation = config.init_deviation,
                 .split = {0},
                 .parts = {{"q", config.width, head_size_},
                           {"k", kv_width, head_size_},
                           {"v", kv_width, head_size_}}});
  out_ = Linear(table, unit, name + ".out", config.width, config.width,
                {.bias = config.bias,
                 .deviation = config.residual_deviation(),
                 .split = {1},
                 .parts = {{"heads", config.width, head_size_}}});
}

void Attention::plan(UnitPlan& plan) {
  const std::int64_t qkv_width = (heads_ + 2 * kv_heads_) * head_size_;
  qkv_value_ = plan.add(Area::stash, qkv_width);
  mixed_ = plan.add(Area::stash, heads_ * head_size_);
  lse_ = plan.add(Area::stash, heads_);
  dqkv_ = plan.add(Area::delta, qkv_width);
  dmixed_ = plan.add(Area::scratch, heads_ * head_size_);
}

Attention::Heads Attention::split(const Tensor& qkv, const Microbatch& batch) const {
  return {heads_of(qkv, batch, 0, heads_, head_size_),
          heads_of(qkv, batch, heads_, kv_heads_, head_size_),
          heads_of(qkv, batch, heads_ + kv_heads_, kv_heads_, head_size_)};
}

Tensor Attention::rotated(const Tensor& qkv) const {
  return {qkv.data(),
          DType::f32,
          {qkv.extent(0), heads_ + kv_heads_, head_size_},
          {qkv.stride(0), head_size_, 1, 0}};
}

ops::Dropout Attention::dropout(const UnitContext& context) const {
  const float rate = context.mode == Mode::train ? rate_ : 0.0F;
  return {rate, {context.seed, Purpose::dropout, static_cast<std::uint32_t>(3 * layer_ + 1)}};
}

void Attention::forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                        const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const std::int64_t rows = x.extent(0);
  const Tensor qkv = memory.view(qkv_value_, rows);  // [R, (H + 2G)·D]
  qkv_.forward(context, qkv, x);
  if (frequencies_) {
    context.ops.rotary(rotated(qkv), batch.positions.reshape({rows}), frequencies_, false);
  }
  const Heads heads = split(qkv, batch);
  const Tensor mixed = memory.view(mixed_, rows);  // [R, H·D]
  const Tensor out = heads_of(mixed, batch, 0, heads_, head_size_);
  const Tensor lse = memory.view(lse_, rows).reshape({batch.sequences, heads_, batch.length});
  if (context.cache != nullptr) {
    attend_cached(context, out, lse, heads);
  } else {
    const ops::AttentionMask mask{true, batch.positions, batch.positions, batch.documents,
                                  batch.documents};
    context.ops.attention(out, lse, heads.q, heads.k, heads.v, mask, scale_, dropout(context),
                          batch.samples);
  }
  out_.forward(context, y, mixed);
}

void Attention::attend_cached(const UnitContext& context, const Tensor& out, const Tensor& lse,
                              const Heads& heads) const {
  KeyValueCache& cache = *context.cache;
  const std::int64_t fresh = context.batch.length;
  const std::int64_t total = cache.length + fresh;
  const std::int64_t width = kv_heads_ * head_size_;
  const auto rows = [&](const Tensor& x) {
    return Tensor(x.data(), DType::f32, {fresh, width}, {x.stride(1), 1, 0, 0});
  };
  context.ops.copy(cache.keys.slice(0, cache.length, total), rows(heads.k));
  context.ops.copy(cache.values.slice(0, cache.length, total), rows(heads.v));
  const auto all = [&](const Tensor& x) {
    return Tensor(x.as<float>(), {1, total, kv_heads_, head_size_});
  };
  const ops::AttentionMask mask{
      true, context.batch.positions, cache.positions.slice(1, 0, total), {}, {}};
  context.ops.attention(out, lse, heads.q, all(cache.keys), all(cache.values), mask, scale_, {},
                        {});
}

void Attention::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                               const UnitMemory& memory) const {
  const Microbatch& batch = context.batch;
  const std::int64_t rows = dy.extent(0);
  const Tensor dmixed = memory.view(dmixed_, rows);
  out_.backward_input(context, dmixed, dy);
  const Heads heads = split(memory.view(qkv_value_, rows), batch);
  const Tensor dqkv = memory.view(dqkv_, rows);
  const Heads dheads = split(dqkv, batch);
  const ops::AttentionMask mask{true, batch.positions, batch.positions, batch.documents,
                                batch.documents};
  context.ops.attention_backward(
      dheads.q, dheads.k, dheads.v, heads_of(dmixed, batch, 0, heads_, head_size_),
      heads_of(memory.view(mixed_, rows), batch, 0, heads_, head_size_),
      memory.view(lse_, rows).reshape({batch.sequences, heads_, batch.length}), heads.q, heads.k,
      heads.v, mask, scale_, dropout(context), batch.samples);
  if (frequencies_) {
    context.ops.rotary(rotated(dqkv), batch.positions.reshape({rows}), frequencies_, true);
  }
  qkv_.backward_input(context, dx, dqkv);
}

void Attention::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                                const UnitMemory& memory) const {
  const std::int64_t rows = dy.extent(0);
  out_.backward_weight(context, dy, memory.view(mixed_, rows));
  qkv_.backward_weight(context, memory.view(dqkv_, rows), x);
}

}  // namespace trireme::model
