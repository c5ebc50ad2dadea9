// Causal self-attention with grouped queries: q|k|v projection, rotary positions, attention, output
// projection. Vaswani et al. (2017); Ainslie et al., "GQA" (2023). Tensor ranks split the query
// heads; a key/value head is on every rank that has one of its query heads.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Attention {
 public:
  Attention(params::ParameterTable& table, int unit, const std::string& name,
            const ModelConfig& config, int layer);
  void plan(UnitPlan& plan);
  /// Adds scratch of backward that is free once the gradient for x is computed.
  void plan_inner(UnitPlan& plan);
  /// The heads' outputs, from all rows of x [R, C].
  void forward(const UnitContext& context, const Tensor& x) const;
  /// The layer's output: this rank's summand [R, C], after forward or recompute.
  void project(const UnitContext& context, const Summand& partial) const;
  /// Recomputes what the plan rebuilds; x as in forward.
  void recompute(const UnitContext& context, const Tensor& x) const;
  /// Whether recompute reads x.
  bool recomputes_from_input() const { return qkv_value_.front().area == Area::rebuilt; }
  /// Backward in four parts, from all rows of dy [R, C]; the first and the second in any order.
  void backward_output_weight(const UnitContext& context, const Tensor& dy) const;
  /// The gradient for q|k|v.
  void backward_inner(const UnitContext& context, const Tensor& dy) const;
  void backward_input_weight(const UnitContext& context, const Tensor& x) const;
  /// This rank's summand [R, C] of the gradient for x.
  void backward_input(const UnitContext& context, const Summand& partial) const;

  /// Width [Gv·D] of each local tile's keys.
  static std::vector<std::int64_t> key_widths(const ModelConfig& config,
                                              const params::Tiles& tiles);

 private:
  /// The heads of one tile, numbered in the whole model.
  struct TileHeads {
    params::Range query, key;
  };
  static TileHeads heads_of_tile(std::int64_t heads, std::int64_t kv_heads,
                                 const params::Tiles& tiles, int tile);
  struct Heads {
    Tensor q, k, v;  // [B, T, heads, D], views of one tile's q|k|v
  };
  Heads split(const Tensor& qkv, const Microbatch& batch, const TileHeads& heads) const;
  ops::HeadSlice slice(const TileHeads& heads) const;
  void rotate(const UnitContext& context, const Tensor& qkv, const TileHeads& heads,
              bool inverse) const;
  ops::Dropout dropout(const UnitContext& context) const;
  void project_in(const UnitContext& context, const Tensor& x) const;
  void attend(const UnitContext& context) const;
  Tensor log_sums(const UnitContext& context, std::size_t tile) const;  // [B, Hv, T]
  void attend_cached(const UnitContext& context, int tile, const Tensor& out, const Tensor& lse,
                     const Heads& heads, const ops::HeadSlice& slice) const;

  std::int64_t heads_, kv_heads_, head_size_;
  float scale_, rate_;
  int layer_;
  ColumnParallel qkv_;
  RowParallel out_;
  std::vector<Slot> qkv_value_, mixed_, lse_;  // per tile [R, (Hv + 2Gv)·D], [R, Hv·D], [R, Hv]
  std::vector<Slot> dqkv_, dmixed_;
};

}  // namespace trireme::model
