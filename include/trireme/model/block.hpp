// A pre-norm transformer block: m = x + drop(attention(norm1(x))); y = m + drop(mlp(norm2(m))).
// Norms, dropout and residuals work on the rank's rows [r, C]; attention and MLP are
// tensor-parallel regions over all rows [R, C].
#pragma once

#include "trireme/model/attention.hpp"
#include "trireme/model/mlp.hpp"

namespace trireme::model {

class Block final : public Unit {
 public:
  Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer);
  std::string name() const override { return name_; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const override;
  void recompute(const UnitContext& context, const Tensor& x,
                 const UnitMemory& memory) const override;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, const UnitMemory& memory) const override;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const override;
  /// One half after the other, each weight's gradient as soon as its factors are there.
  void backward(const UnitContext& context, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const UnitMemory& memory) const override;

 private:
  enum class Site : std::uint32_t { attention = 2, mlp = 3 };
  ops::Dropout dropout(const UnitContext& context, Site site) const;
  /// y = x + drop(branch), in place on the branch's values.
  void join(const UnitContext& context, const Tensor& y, const Tensor& x, Site site) const;
  /// middle = x + drop(attention), whose heads are mixed already.
  void attention_half(const UnitContext& context, const Tensor& x, const UnitMemory& memory) const;
  /// normed = norm(x), all rows of it.
  void normalize(const UnitContext& context, const Norm& norm, const Tensor& normed,
                 const Tensor& x, const UnitMemory& memory) const;
  /// All rows of the gradient that enters a branch: of `dy` itself, or of a copy of it in `slot`
  /// behind the dropout mask.
  Tensor branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                         const UnitMemory& memory, Site site) const;
  /// The same, already made.
  Tensor branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                         const UnitMemory& memory) const;
  /// Backward of a half: of `branch` behind `norm`, of which x is the input and `into` the gradient
  /// for the output; the gradient for x is added to dx.
  template <class Branch>
  void backward_half(const UnitContext& context, const Branch& branch, const Norm& norm,
                     const Slot& normed_slot, const Slot& dnormed_slot, const Tensor& dx,
                     const Tensor& into, const Tensor& x, const UnitMemory& memory) const;
  bool copies_gradient(const Shares& shares) const { return rate_ > 0 || shares.sequence_parallel; }

  std::string name_;
  std::int64_t width_;
  int layer_;
  float rate_;
  Norm norm1_;
  Attention attention_;
  Norm norm2_;
  Mlp mlp_;
  PartialSum partial_;
  Slot normed1_, middle_, normed2_;     // [R, C], [r, C], [R, C]
  Slot dnormed1_, dmiddle_, dnormed2_;  // [r, C] each; dmiddle only where backward is split
  Slot dattention_, dmlp_;              // [R, C], only with dropout or sequence parallelism
};

}  // namespace trireme::model
