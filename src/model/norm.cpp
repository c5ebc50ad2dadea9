#include "trireme/model/norm.hpp"

#include "trireme/model/tensor_parallel.hpp"

namespace trireme::model {

Norm::Norm(params::ParameterTable& table, int unit, const std::string& name,
           const ModelConfig& config)
    : centered_(config.layer_norm()), epsilon_(static_cast<float>(config.epsilon)) {
  weight_ = table.add({.name = name + ".weight",
                       .shape = {config.width},
                       .units = {unit},
                       .initialization = {params::Initialization::Kind::ones, 0}});
  if (!centered_ || !config.bias) return;
  bias_ = table.add({.name = name + ".bias", .shape = {config.width}, .units = {unit}});
}

void Norm::plan(UnitPlan& plan, RecomputeCost cost) {
  if (centered_) mean_ = plan.keep(cost, plan.local_rows(), 1, DType::f32);
  rstd_ = plan.keep(cost, plan.local_rows(), 1, DType::f32);
}

Tensor Norm::statistic(const UnitContext& context, const Slot& slot) const {
  const Tensor column = context.local(slot);  // [r, 1]
  return column.reshape({column.extent(0)});
}

void Norm::forward(const UnitContext& context, const Tensor& y, const Tensor& x) const {
  const Tensor rstd = statistic(context, rstd_);
  const Tensor& gain = context.values(weight_);
  const Tensor mean = centered_ ? statistic(context, mean_) : Tensor();
  const Tensor bias = bias_ >= 0 ? context.values(bias_) : Tensor();
  context.ops.norm(y, mean, rstd, x, gain, bias, epsilon_);
}

void Norm::forward_sum(const UnitContext& context, const Tensor& y, const Tensor& sum,
                       const Tensor& a, const Tensor& b) const {
  const Tensor rstd = statistic(context, rstd_);
  const Tensor mean = centered_ ? statistic(context, mean_) : Tensor();
  const Tensor bias = bias_ >= 0 ? context.values(bias_) : Tensor();
  context.ops.add_norm(y, mean, rstd, sum, a, b, context.values(weight_), bias, epsilon_);
}

void Norm::backward(const UnitContext& context, BackwardPart part, const Tensor& dx,
                    const Tensor& dy, const Tensor& x, const Tensor& residual) const {
  const Tensor rstd = statistic(context, rstd_);
  const Tensor& gain = context.values(weight_);
  const Tensor mean = centered_ ? statistic(context, mean_) : Tensor();
  // In reproducible mode a split backward has the same bits.
  if (part == BackwardPart::all && !context.shares.reproducible) {
    const ParameterViews& gradients = *context.leaves.front().gradients;
    const Tensor dbias = bias_ >= 0 ? gradients(bias_) : Tensor();
    return context.ops.norm_backward(dx, gradients(weight_), dbias, dy, x, gain, mean, rstd,
                                     residual);
  }
  if (has_weight(part)) backward_weight(context, dy, x);
  if (!has_input(part)) return;
  context.ops.norm_backward_input(dx, dy, x, gain, mean, rstd, residual);
}

void Norm::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const {
  const Tensor all_rstd = statistic(context, rstd_);
  const Tensor all_mean = centered_ ? statistic(context, mean_) : Tensor();
  for_each_round(context, [&](std::span<const std::size_t> leaves) {
    std::vector<ops::RowSums> sums;
    for (const std::size_t leaf : leaves) {
      const ParameterViews& gradients = *context.leaves[leaf].gradients;
      for_each_row_tile(context, leaf, [&](int copy, std::int64_t begin, std::int64_t end) {
        const auto part = [&](const Tensor& rows) { return rows.slice(0, begin, end); };
        sums.push_back({gradients(weight_, copy), bias_ >= 0 ? gradients(bias_, copy) : Tensor(),
                        part(dy), part(x), centered_ ? part(all_mean) : Tensor(), part(all_rstd)});
      });
    }
    context.ops.independent_row_sums(sums);
  });
}

}  // namespace trireme::model
