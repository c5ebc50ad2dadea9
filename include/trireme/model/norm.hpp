// The normalization before each branch of a block and before the head.
#pragma once

#include <string>

#include "trireme/model/config.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/layout.hpp"

namespace trireme::model {

/// LayerNorm or RMSNorm over channels, on the rank's rows [r, C].
class Norm {
 public:
  Norm() = default;
  Norm(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  /// `cost`: of the statistics, which forward writes.
  void plan(UnitPlan& plan, RecomputeCost cost);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  /// The same of sum = a + b, which may be a or b.
  void forward_sum(const UnitContext& context, const Tensor& y, const Tensor& sum, const Tensor& a,
                   const Tensor& b) const;
  /// Adds to the gradients of gain and bias; dx = gradient, plus `residual` [r, C] unless absent.
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x, const Tensor& residual) const;

 private:
  Tensor statistic(const UnitContext& context, const Slot& slot) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const;

  bool centered_ = true;  // LayerNorm
  float epsilon_ = 1e-5F;
  int weight_ = -1, bias_ = -1;
  Slot mean_, rstd_;
};

}  // namespace trireme::model
