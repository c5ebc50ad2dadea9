// Causal self-attention with grouped queries: q|k|v projection, rotary positions, attention, output
// projection. Vaswani et al. (2017); Ainslie et al., "GQA" (2023).
#pragma once

#include "trireme/model/layers.hpp"

namespace trireme::model {

class Attention {
 public:
  /// `frequencies` [D/2] of rotary positions, absent for learned ones; must outlive the layer.
  Attention(params::ParameterTable& table, int unit, const std::string& name,
            const ModelConfig& config, int layer, const Tensor& frequencies);
  void plan(UnitPlan& plan);
  void forward(const UnitContext& context, const Tensor& y, const Tensor& x,
               const UnitMemory& memory) const;
  void backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                      const UnitMemory& memory) const;
  void backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                       const UnitMemory& memory) const;

 private:
  struct Heads {
    Tensor q, k, v;  // [B, T, heads, D], views of q|k|v
  };
  Heads split(const Tensor& qkv, const Microbatch& batch) const;
  Tensor rotated(const Tensor& qkv) const;  // the q and k heads, [R, H + G, D]
  ops::Dropout dropout(const UnitContext& context) const;
  void attend_cached(const UnitContext& context, const Tensor& out, const Tensor& lse,
                     const Heads& heads) const;

  std::int64_t heads_, kv_heads_, head_size_;
  float scale_, rate_;
  int layer_;
  Tensor frequencies_;
  Linear qkv_, out_;
  Slot qkv_value_, mixed_, lse_;  // F → backward
  Slot dqkv_, dmixed_;
};

}  // namespace trireme::model
