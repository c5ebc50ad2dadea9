// The last unit: final norm, head and loss as one. Block of rows by block of rows it computes
// logits, loss and gradient, so that a micro-batch's logits never exist at once. The head's weight
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
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const override;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, const UnitMemory& memory) const override;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const override;
  /// logits [R, V] of x [R, C]: evaluation of few rows, for generation and comparison.
  void logits(const UnitContext& context, const Tensor& logits, const Tensor& x,
              const UnitMemory& memory) const;

  /// Rows whose logits exist at once.
  static std::int64_t block_rows(std::int64_t rows, std::int64_t vocabulary);

 private:
  std::int64_t width_, vocabulary_, block_ = 0;
  int weight_ = -1;
  Norm norm_;
  Slot normed_;   // [R, C]
  Slot dnormed_;  // [R, C], from forward to backward
  Slot factor_, logits_, maximum_, sum_, target_logit_;
};

}  // namespace trireme::model
