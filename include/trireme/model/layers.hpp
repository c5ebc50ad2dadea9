// Layers with parameters: column-parallel and row-parallel linear maps, and norms.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/model/config.hpp"
#include "trireme/model/tensor_parallel.hpp"
#include "trireme/params/table.hpp"

namespace trireme::model {

struct LinearOptions {
  bool bias = false;
  double deviation = 0.02;
  std::vector<params::Part> parts;  // of the split dimension
};

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `out`: each tile computes columns of y.
/// Shoeybi et al. (2019), section 3.
class ColumnParallel {
 public:
  ColumnParallel() = default;
  ColumnParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
                 std::int64_t out, const LinearOptions& options);
  /// Widths of the local tiles of y.
  std::vector<std::int64_t> widths(const params::Tiles& tiles) const;
  /// y: one [R, out_v] per local tile. With `before_gelu`, of the same shapes, these become the
  /// linear map's values and y their GELU.
  void forward(const UnitContext& context, std::span<const Tensor> y, const Tensor& x,
               std::span<const Tensor> before_gelu = {}) const;
  /// partial [R, in]: this rank's summand of the gradient for x.
  void backward_input(const UnitContext& context, const Summand& partial,
                      std::span<const Tensor> dy) const;
  void backward_weight(const UnitContext& context, std::span<const Tensor> dy,
                       const Tensor& x) const;

 private:
  params::Parameter shape_;      // of the weight, for its tiles
  int weight_ = -1, bias_ = -1;  // rows of the table
};

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `in`: the tiles' products are summed.
/// Tile 0 adds the bias.
class RowParallel {
 public:
  RowParallel() = default;
  RowParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
              std::int64_t out, const LinearOptions& options);
  /// partial [R, out]: this rank's summand of y. x: one [R, in_v] per local tile.
  void forward(const UnitContext& context, const Summand& partial, std::span<const Tensor> x) const;
  /// dx: one [R, in_v] per local tile, from dy [R, out]. With `gelu_inputs`, of the same shapes, dx
  /// is the gradient for these, of which x is the GELU.
  void backward_input(const UnitContext& context, std::span<const Tensor> dx, const Tensor& dy,
                      std::span<const Tensor> gelu_inputs = {}) const;
  void backward_weight(const UnitContext& context, const Tensor& dy,
                       std::span<const Tensor> x) const;

 private:
  int weight_ = -1, bias_ = -1;
};

/// LayerNorm or RMSNorm over channels, on the rank's rows [r, C].
class Norm {
 public:
  Norm() = default;
  Norm(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  /// `cost`: of the statistics, which forward writes.
  void plan(UnitPlan& plan, RecomputeCost cost);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  /// Adds to the gradients of gain and bias; dx = gradient, or += with `accumulate`.
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x, bool accumulate) const;

 private:
  Tensor statistic(const UnitContext& context, const Slot& slot) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const;

  bool centered_ = true;  // LayerNorm
  float epsilon_ = 1e-5F;
  int weight_ = -1, bias_ = -1;
  Slot mean_, rstd_;
};

}  // namespace trireme::model
