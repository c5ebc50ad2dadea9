// The two layers that own parameters inside units: linear maps and norms.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/model/config.hpp"
#include "trireme/model/unit.hpp"
#include "trireme/params/table.hpp"

namespace trireme::model {

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in].
class Linear {
 public:
  struct Options {
    bool bias = false;
    double deviation = 0.02;
    params::Split split;
    std::vector<params::Part> parts;
  };
  Linear() = default;
  Linear(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
         std::int64_t out, const Options& options);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const;

 private:
  int weight_ = -1, bias_ = -1;  // rows of the table
};

/// LayerNorm or RMSNorm over channels, as the model is configured.
class Norm {
 public:
  Norm() = default;
  Norm(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const;
  /// dx = gradient, or += with `accumulate`.
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, const UnitMemory& memory, bool accumulate) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const;

 private:
  Tensor statistic(const Slot& slot, const UnitMemory& memory, std::int64_t rows) const;
  bool centred_ = true;  // LayerNorm
  float epsilon_ = 1e-5F;
  int weight_ = -1, bias_ = -1;
  Slot mean_, rstd_;
};

}  // namespace trireme::model
