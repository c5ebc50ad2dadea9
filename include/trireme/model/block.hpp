// A pre-norm transformer block: m = x + dropout(attention(norm(x))); y = m + dropout(mlp(norm(m))).
// Norms, dropout and residuals work on the rank's rows [r, C]; attention and MLP are
// tensor-parallel regions over all rows [R, C].
#pragma once

#include "trireme/model/norm.hpp"
#include "trireme/model/tensor_parallel.hpp"

namespace trireme::model {

/// A tensor-parallel region between two linear maps: `in_` from all rows [R, C], split by columns;
/// what is between them; and `out_`, split by rows. Shoeybi et al. (2019), section 3.
class Region {
 public:
  /// These rows of the layer's output: of this rank's summand [R, C], after forward or recompute.
  void project(const UnitContext& context, const Summand& partial,
               const params::Range& rows) const {
    std::vector<Tensor> x = context.full(middle_);
    for (Tensor& tile : x) tile = tile.slice(0, rows.begin, rows.end);
    out_.forward(context, partial, x);
  }
  /// Whether recompute reads x.
  bool recomputes_from_input() const { return first_.front().area == Area::rebuilt; }
  /// The last two of four parts of backward, after backward_inner, in any order.
  void backward_input_weight(const UnitContext& context, const Tensor& x) const {
    in_.backward_weight(context, context.full(dfirst_), x);
  }
  /// This rank's summand [R, C] of the gradient for x.
  void backward_input(const UnitContext& context, const Summand& partial) const {
    in_.backward_input(context, partial, context.full(dfirst_));
  }

 protected:
  /// Scratch of backward for the gradient of middle_.
  void plan_dmiddle(UnitPlan& plan);

  ColumnParallel in_;
  RowParallel out_;
  std::vector<Slot> first_, middle_;  // per tile: what in_ writes, and what out_ reads
  std::vector<Slot> dfirst_, dmiddle_;
};

/// Causal self-attention with grouped queries: q|k|v projection, rotary positions, attention,
/// output projection. Vaswani et al. (2017); Ainslie et al., "GQA" (2023). Tensor ranks split the
/// query heads; a key/value head is on every rank that has one of its query heads.
class Attention : public Region {
 public:
  Attention(params::ParameterTable& table, int unit, const std::string& name,
            const ModelConfig& config, int layer);
  void plan(UnitPlan& plan);
  /// Adds scratch of attention itself and of its backward, which is free once the gradient for x is
  /// computed.
  void plan_inner(UnitPlan& plan);
  /// q|k|v from all rows of x [R, C].
  void project_in(const UnitContext& context, const Tensor& x) const;
  /// The heads' outputs of each call; of several where sequences are cut.
  void attend(std::span<const UnitContext* const> calls) const;
  /// Recomputes what the plan rebuilds: first q|k|v, x as in forward, then what attend makes.
  void recompute(const UnitContext& context, const Tensor& x) const {
    if (recomputes_from_input()) project_in(context, x);
  }
  void recompute_attend(std::span<const UnitContext* const> calls) const {
    if (middle_.front().area == Area::rebuilt) attend(calls);
  }
  /// Recomputes into scratch what backward_output_weight reads.
  void recompute_middle(const UnitContext& /*context*/) const {}
  /// The first two parts of backward, from all rows of dy [R, C], in any order: for the output's
  /// weight, and for the heads' outputs.
  void backward_output_weight(const UnitContext& context, const Tensor& dy) const;
  void backward_inner(const UnitContext& context, const Tensor& dy) const;
  /// Then the gradients for q|k|v of each call.
  void attend_backward(std::span<const UnitContext* const> calls) const;

  /// Tensor ranks of a key/value group, which divide `ranks`: no border between two groups is
  /// inside the query heads of one key/value head. The fewest; in reproducible mode of the powers
  /// of two, so that a sum over a group is part of the tree over all `tiles`; else all.
  static int kv_ranks(const ModelConfig& config, int ranks, int tiles, bool reproducible);
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
  void attend(const UnitContext& context) const;
  void attend_backward(const UnitContext& context) const;
  // Where sequences are cut (context_attention.cpp):
  class Exchange;
  void plan_exchange(UnitPlan& plan);
  void attend_pairs(std::span<const UnitContext* const> calls) const;
  void attend_pairs_backward(std::span<const UnitContext* const> calls) const;
  Tensor log_sums(const UnitContext& context, std::size_t tile) const;  // [B, Hv, T]
  void attend_cached(const UnitContext& context, int tile, const Tensor& out, const Tensor& lse,
                     const Heads& heads, const ops::HeadSlice& slice) const;

  std::int64_t heads_, kv_heads_, head_size_;
  float scale_, rate_;
  int layer_;
  std::vector<Slot> lse_;  // per tile [R, Hv], beside q|k|v [R, (Hv + 2Gv)·D] and heads [R, Hv·D]
  std::int64_t sequence_;  // tokens of a whole one
  // Scratch where sequences are cut. k|v [rows, 2·Gv·D] of the widest tile: of all tokens, or with
  // a ring two ranks'; gradients for those of all tokens, and of each lower level of a sum over
  // pairs.
  Slot keys_, all_dkeys_;
  std::vector<Slot> dkeys_;
  Slot dpiece_, wide_dpiece_;  // of one call; also in fp32, beside a narrower type
  // Partial results [R, Hv·D] and their log-sum-exps in fp32, and the result of a call.
  std::vector<Slot> results_, sums_;
  Slot piece_;
};

/// The MLP of a block: up, GELU, down; or gate|up, SwiGLU, down.
class Mlp : public Region {
 public:
  Mlp(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  /// Adds scratch of backward that is free once the gradient for x is computed.
  void plan_inner(UnitPlan& plan) {
    if (gated_) plan_dmiddle(plan);
  }
  /// The hidden activations, from all rows of x [R, C].
  void forward(const UnitContext& context, const Tensor& x) const;
  /// Recomputes what the plan rebuilds; x as in forward.
  void recompute(const UnitContext& context, const Tensor& x) const;
  /// Recomputes into scratch what backward_output_weight reads.
  void recompute_middle(const UnitContext& context) const {
    if (middle_.front().area == Area::scratch) activate(context);
  }
  /// The first two parts of backward, from all rows of dy [R, C]. Where backward is one call this
  /// one comes first: its scratch overlaps the second one's result.
  void backward_output_weight(const UnitContext& context, const Tensor& dy) const;
  /// The gradient for the up projection's output.
  void backward_inner(const UnitContext& context, const Tensor& dy) const;

 private:
  void activate(const UnitContext& context) const;

  bool gated_;
};

/// x + y with y = dropout(layer(norm(x))); `Layer` is Attention or Mlp. The block adds x.
template <class Layer>
class ResidualBranch {
 public:
  ResidualBranch(Norm norm, Layer layer, const ModelConfig& config, std::uint32_t dropout_stream)
      : width_(config.width),
        norm_(norm),
        layer_(std::move(layer)),
        dropout_(config.dropout, dropout_stream) {}
  void plan(UnitPlan& plan);
  const Layer& layer() const { return layer_; }
  /// Attention: q|k|v. What project needs beside it, its layer computes.
  void enter(const UnitContext& context, const Tensor& x) const;
  /// MLP: y for x = a + b, which may be a or b.
  void forward_sum(const UnitContext& context, const Tensor& y, const Tensor& x, const Tensor& a,
                   const Tensor& b) const;
  /// Recomputes what the plan rebuilds, but y and what attention makes of q|k|v. The norm may still
  /// be in flight.
  [[nodiscard]] RowGather recompute(const UnitContext& context, const Tensor& x) const;
  /// y, from what forward or recompute left in the layer.
  void project(const UnitContext& context, const Tensor& y) const;
  /// Backward, in two halves; attention computes gradients for q|k|v in between. dx = dy + the
  /// gradient through the layer: that of x + y. dx may be dy.
  void begin_backward(const UnitContext& context, BackwardPart part, const Tensor& dy) const;
  void end_backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                    const Tensor& dy, const Tensor& x) const;

 private:
  /// Starts to gather all rows of normed = norm(x).
  [[nodiscard]] RowGather normalize(const UnitContext& context, const Tensor& x) const;

  std::int64_t width_;
  Norm norm_;
  Layer layer_;
  RegionDropout dropout_;
  PartialSum partial_;
  Slot normed_, dnormed_;  // [R, C], [r, C]
};

class Block final : public Unit {
 public:
  Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer);
  std::string name() const override { return name_; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const override;
  void recompute(const UnitContext& context, const Tensor& x) const override;
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const override;
  void forward_pairs(std::span<const ForwardCall> calls) const override;
  void recompute_pairs(std::span<const BackwardCall> calls) const override;
  void backward_pairs(std::span<const BackwardCall> calls, BackwardPart part) const override;

 private:
  std::string name_;
  std::int64_t width_;
  ResidualBranch<Attention> attention_;
  ResidualBranch<Mlp> mlp_;
  Slot middle_, dmiddle_;  // [r, C]; dmiddle only where backward is split
};

}  // namespace trireme::model
