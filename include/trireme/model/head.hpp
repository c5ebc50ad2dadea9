// The last unit: final norm, head and loss as one. Block of rows by block of rows it computes
// logits, loss and gradient, so that a micro-batch's logits never exist at once; and split over
// tensor ranks by vocabulary rows, so that no rank ever holds all of a row's. The head's weight
// gradient is added in forward.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Head final : public Unit {
 public:
  /// `token_row`: the token embedding's row of the table, used where the head is tied.
  Head(params::ParameterTable& table, int unit, const ModelConfig& config, int token_row);
  std::string name() const override { return "head"; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const override;
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const override;
  /// logits [R, V] of x [r, C] on every tensor rank: few rows, for generation and comparison.
  void logits(const UnitContext& context, const Tensor& logits, const Tensor& x) const;

  /// Rows of `rows`, of `width` elements of `type`, whose logits exist at once.
  static std::int64_t block_rows(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                                 DType type);

 private:
  /// One block of rows at work.
  struct RowBlock;
  params::Range tile(const UnitContext& context, int local) const;
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
