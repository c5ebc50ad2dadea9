// The first and the last unit, of which tensor ranks split the vocabulary: the embedding, and the
// head with the loss. Their weights may be one (tied).
#pragma once

#include "trireme/model/config.hpp"
#include "trireme/model/norm.hpp"
#include "trireme/model/tensor_parallel.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::model {

/// Token embedding, learned positions, dropout.
class Embedding final : public Unit {
 public:
  Embedding(params::ParameterTable& table, int unit, const ModelConfig& config);
  int token_row() const { return token_; }
  std::string name() const override { return "embedding"; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const override;
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const override;

 private:
  Tensor local_positions(const UnitContext& context) const;  // i32 [r]

  std::int64_t vocabulary_, width_;
  int token_ = -1, position_ = -1;
  PartialSum partial_{true};
  RegionDropout dropout_;
};

/// Final norm, head and loss. Forward computes logits, loss and gradients by blocks of rows
/// (block_rows), so that the logits of a large micro-batch never exist at once; a tensor rank has
/// those of its part of the vocabulary. Forward adds the weight's gradient.
class Head final : public Unit {
 public:
  /// `token_row`: the token embedding's row of the table, for a tied head.
  Head(params::ParameterTable& table, int unit, const ModelConfig& config, int token_row);
  std::string name() const override { return "head"; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const override;
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const override;
  /// logits [R, V] of x [r, C] on every tensor rank: few rows, for generation and comparison.
  void logits(const UnitContext& context, const Tensor& logits, const Tensor& x) const;

  /// Of `rows` rows of `width` elements of `type`: those whose logits exist at once, on a GPU or a
  /// CPU.
  static std::int64_t block_rows(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                                 DType type, bool on_gpu);

 private:
  struct RowBlock;
  /// Σ weight·nll of the block; with its gradients when training.
  void run(const UnitContext& context, const RowBlock& block) const;
  /// All rows [R, C] of norm(x).
  Tensor normalize(const UnitContext& context, const Tensor& x) const;

  std::int64_t width_, vocabulary_, block_ = 0;
  int weight_ = -1;
  Norm norm_;
  PartialSum partial_;
  Slot normed_;                            // [R, C]
  Slot dnormed_;                           // [r, C], from forward to backward
  Slot factor_, maximum_;                  // [R], [block]
  Slot sums_;                              // [2, block]: Σ exp and the target's logit
  std::vector<Slot> logits_, sum_levels_;  // per tile [block, Vv]; the tree's summands
};

}  // namespace trireme::model
