// A pre-norm transformer block: m = x + drop(attention(norm1(x))); y = m + drop(mlp(norm2(m))).
#pragma once

#include "trireme/model/attention.hpp"
#include "trireme/model/mlp.hpp"

namespace trireme::model {

class Block final : public Unit {
 public:
  Block(params::ParameterTable& table, int unit, const ModelConfig& config, int layer,
        const Tensor& frequencies);
  std::string name() const override { return name_; }
  void plan(UnitPlan& plan) override;
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const override;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, const UnitMemory& memory) const override;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const override;

 private:
  enum class Site : std::uint32_t { attention = 2, mlp = 3 };
  ops::Dropout dropout(const UnitContext& context, Site site) const;
  /// y = x + drop(branch), in place on the branch's values.
  void join(const UnitContext& context, const Tensor& y, const Tensor& x, Site site) const;
  /// The gradient that enters a branch: behind the mask a copy in `slot`, else `dy` itself.
  Tensor branch_gradient(const UnitContext& context, const Tensor& dy, const Slot& slot,
                         const UnitMemory& memory, Site site) const;

  std::string name_;
  std::int64_t width_;
  int layer_;
  float rate_;
  Norm norm1_;
  Attention attention_;
  Norm norm2_;
  Mlp mlp_;
  Slot normed1_, middle_, normed2_;     // [R, C] each
  Slot dnormed1_, dmiddle_, dnormed2_;  // [R, C] each
  Slot dattention_, dmlp_;              // [R, C], only with dropout
};

}  // namespace trireme::model
