#include "trireme/model/layers.hpp"

namespace trireme::model {

namespace {

const Tensor& at(const std::vector<Tensor>& tensors, int row) {
  return tensors[static_cast<std::size_t>(row)];
}

}  // namespace

Linear::Linear(params::ParameterTable& table, int unit, const std::string& name, std::int64_t in,
               std::int64_t out, const Options& options) {
  params::Parameter weight{.name = name + ".weight", .shape = {out, in}};
  weight.split = options.split;
  weight.parts = options.parts;
  weight.units = {unit};
  weight.decay = true;
  weight.in_products = true;
  weight.initialisation = {params::Initialisation::Kind::normal, options.deviation};
  weight_ = table.add(weight);
  if (!options.bias) return;
  params::Parameter bias{.name = name + ".bias", .shape = {out}};
  // A column split (dimension 0) splits the bias too; behind a row split it is whole on every rank.
  if (options.split.dimension == 0) {
    bias.split = options.split;
    bias.parts = options.parts;
  }
  bias.units = {unit};
  bias_ = table.add(bias);
}

void Linear::forward(const UnitContext& context, const Tensor& y, const Tensor& x) const {
  ops::MatmulOptions options{.transpose_b = true};
  if (bias_ >= 0) options.bias = at(context.values, bias_);
  context.ops.matmul(y, x, at(context.values, weight_), options);
}

void Linear::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy) const {
  context.ops.matmul(dx, dy, at(context.values, weight_), {});
}

void Linear::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x) const {
  context.ops.matmul(at(context.gradients, weight_), dy, x,
                     {.transpose_a = true, .accumulate = true});
  if (bias_ >= 0) context.ops.column_sum(at(context.gradients, bias_), dy);
}

Norm::Norm(params::ParameterTable& table, int unit, const std::string& name,
           const ModelConfig& config)
    : centred_(config.layer_norm()), epsilon_(static_cast<float>(config.epsilon)) {
  params::Parameter weight{.name = name + ".weight", .shape = {config.width}};
  weight.units = {unit};
  weight.initialisation = {params::Initialisation::Kind::ones, 0};
  weight_ = table.add(weight);
  if (!centred_ || !config.bias) return;
  params::Parameter bias{.name = name + ".bias", .shape = {config.width}};
  bias.units = {unit};
  bias_ = table.add(bias);
}

void Norm::plan(UnitPlan& plan) {
  if (centred_) mean_ = plan.add(Area::stash, 1);
  rstd_ = plan.add(Area::stash, 1);
}

Tensor Norm::statistic(const Slot& slot, const UnitMemory& memory, std::int64_t rows) const {
  return memory.view(slot, rows).reshape({rows});
}

void Norm::forward(const UnitContext& context, const Tensor& y, const Tensor& x,
                   const UnitMemory& memory) const {
  const Tensor rstd = statistic(rstd_, memory, x.extent(0));
  const Tensor& gain = at(context.values, weight_);
  if (!centred_) return context.ops.rms_norm(y, rstd, x, gain, epsilon_);
  const Tensor bias = bias_ >= 0 ? at(context.values, bias_) : Tensor();
  context.ops.layer_norm(y, statistic(mean_, memory, x.extent(0)), rstd, x, gain, bias, epsilon_);
}

void Norm::backward_input(const UnitContext& context, const Tensor& dx, const Tensor& dy,
                          const Tensor& x, const UnitMemory& memory, bool accumulate) const {
  const Tensor rstd = statistic(rstd_, memory, x.extent(0));
  const Tensor& gain = at(context.values, weight_);
  if (!centred_) return context.ops.rms_norm_backward_input(dx, dy, x, gain, rstd, accumulate);
  context.ops.layer_norm_backward_input(dx, dy, x, gain, statistic(mean_, memory, x.extent(0)),
                                        rstd, accumulate);
}

void Norm::backward_weight(const UnitContext& context, const Tensor& dy, const Tensor& x,
                           const UnitMemory& memory) const {
  const Tensor rstd = statistic(rstd_, memory, x.extent(0));
  const Tensor& dgain = at(context.gradients, weight_);
  if (!centred_) return context.ops.rms_norm_backward_weight(dgain, dy, x, rstd);
  const Tensor dbias = bias_ >= 0 ? at(context.gradients, bias_) : Tensor();
  context.ops.layer_norm_backward_weight(dgain, dbias, dy, x, statistic(mean_, memory, x.extent(0)),
                                         rstd);
}

}  // namespace trireme::model
