// The feed-forward half of a block: up, GELU, down; or gate|up, SwiGLU, down.
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Mlp {
 public:
  Mlp(params::ParameterTable& table, int unit, const std::string& name, const ModelConfig& config);
  void plan(UnitPlan& plan);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const UnitMemory& memory) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const;

 private:
  bool gated_;
  std::int64_t hidden_, up_width_;
  Linear up_, down_;
  Slot up_value_, active_;  // [R, F or 2F], [R, F]
  Slot dup_, dactive_;
};

}  // namespace trireme::model
