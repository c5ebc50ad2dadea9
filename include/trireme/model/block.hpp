// A pre-norm transformer block: m = x + dropout(attention(norm(x))); y = m + dropout(mlp(norm(m))).
// Norms, dropout and residuals work on the rank's rows [r, C]; attention and MLP are
// tensor-parallel regions over all rows [R, C].
#pragma once

#include "trireme/model/attention.hpp"
#include "trireme/model/mlp.hpp"

namespace trireme::model {

/// y = x + dropout(layer(norm(x))); `Layer` is Attention or Mlp.
template <class Layer>
class ResidualBranch {
 public:
  ResidualBranch(Norm norm, Layer layer, const ModelConfig& config, std::uint32_t dropout_stream)
      : width_(config.width),
        norm_(std::move(norm)),
        layer_(std::move(layer)),
        dropout_(config.dropout, dropout_stream) {}
  void plan(UnitPlan& plan);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  /// Recomputes what the plan rebuilds, but y.
  void recompute(const UnitContext& context, const Tensor& x) const;
  /// y, from what forward or recompute left in the layer.
  void add_residual(const UnitContext& context, const Tensor& y, const Tensor& x) const;
  /// Adds the gradient through the layer, from that for y, to dx. dx may be dy.
  void backward(const UnitContext& context, BackwardPart part, const Tensor& dx, const Tensor& dy,
                const Tensor& x) const;

 private:
  /// normed = norm(x), all rows of it.
  void normalize(const UnitContext& context, const Tensor& x) const;

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

 private:
  std::string name_;
  std::int64_t width_;
  ResidualBranch<Attention> attention_;
  ResidualBranch<Mlp> mlp_;
  Slot middle_, dmiddle_;  // [r, C]; dmiddle only where backward is split
};

}  // namespace trireme::model
