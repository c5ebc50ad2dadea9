// The layers that own parameters inside units: linear maps, split over tensor ranks by columns or
// by rows of their matrix's transpose, and norms.
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

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `out`: each tile makes columns of y
/// from whole rows of x. Shoeybi et al. (2019), section 3.
class ColumnParallel {
 public:
  ColumnParallel() = default;
  ColumnParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
                 std::int64_t out, const LinearOptions& options);
  /// Widths of the local tiles of y.
  std::vector<std::int64_t> widths(const params::Tiles& tiles) const;
  /// y: one [R, out_v] for each local tile. With `before_gelu`, as many of the same shape, those
  /// get the map's values and y their gelu.
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

/// y [R, out] = x [R, in]·Wᵀ (+ b), W [out, in] split along `in`: each tile multiplies its columns
/// of x, and the products are summed. Tile 0 carries the bias.
class RowParallel {
 public:
  RowParallel() = default;
  RowParallel(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
              std::int64_t out, const LinearOptions& options);
  /// partial [R, out]: this rank's summand of y. x: one [R, in_v] for each local tile.
  void forward(const UnitContext& context, const Summand& partial, std::span<const Tensor> x) const;
  /// dx: one [R, in_v] for each local tile, from all rows of dy [R, out]. With `gelu_inputs`, as
  /// many of the same shape, dx is the gradient for what x is the gelu of.
  void backward_input(const UnitContext& context, std::span<const Tensor> dx, const Tensor& dy,
                      std::span<const Tensor> gelu_inputs = {}) const;
  void backward_weight(const UnitContext& context, const Tensor& dy,
                       std::span<const Tensor> x) const;

 private:
  int weight_ = -1, bias_ = -1;
};

/// LayerNorm or RMSNorm over channels, as the model is configured, on the rank's rows [r, C].
class Norm {
 public:
  Norm() = default;
  Norm(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  /// `remake`: of the statistics, which forward writes.
  void plan(UnitPlan& plan, Remake remake);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  /// Adds to the gradients of gain and bias; dx = gradient, or += with `accumulate`.
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x, bool accumulate) const;

 private:
  Tensor statistic(const UnitContext& context, const Slot& slot) const;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const Tensor& x, bool accumulate) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const;

  bool centered_ = true;  // LayerNorm
  float epsilon_ = 1e-5F;
  int weight_ = -1, bias_ = -1;
  Slot mean_, rstd_;
};

}  // namespace trireme::model
