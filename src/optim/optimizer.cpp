#include "trireme/optim/optimizer.hpp"

#include <cmath>

namespace trireme::optim {

double global_norm(ops::Ops& ops, const params::ParameterTable& table, const Tensor& gradients) {
  double sum = 0;
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    const Tensor view = table.view(gradients, static_cast<int>(i));
    sum += ops.sum_of_squares(view.reshape({view.elements()}));
  }
  return std::sqrt(sum);
}

double clip_factor(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

std::vector<std::string> Optimizer::state_names(const OptimConfig& config) {
  if (config.name == "sgd") return {"sgd.momentum"};
  return {"adamw.moment1", "adamw.moment2"};
}

Optimizer::Optimizer(const OptimConfig& config, const params::ParameterTable& table,
                     device::MemoryLedger& ledger)
    : config_(config), table_(table) {
  const auto names = state_names(config);
  const std::size_t bytes = static_cast<std::size_t>(table.flat_elements()) * sizeof(float);
  buffer_ = device::Buffer(ledger, device::Use::optimizer, names.size() * bytes);
  for (std::size_t i = 0; i < names.size(); ++i) {
    states_.push_back({names[i], buffer_.view(DType::f32, {table.flat_elements()}, i * bytes)});
  }
}

void Optimizer::update(ops::Ops& ops, const Tensor& parameters, const Tensor& gradients,
                       double learning_rate, std::int64_t step, double gradient_scale) {
  const auto t = static_cast<double>(step + 1);
  ops::AdamWStep adamw{.learning_rate = static_cast<float>(learning_rate),
                       .beta1 = static_cast<float>(config_.beta1),
                       .beta2 = static_cast<float>(config_.beta2),
                       .epsilon = static_cast<float>(config_.epsilon),
                       .correction1 = static_cast<float>(1 - std::pow(config_.beta1, t)),
                       .correction2 = static_cast<float>(1 - std::pow(config_.beta2, t)),
                       .gradient_scale = static_cast<float>(gradient_scale)};
  const auto& rows = table_.rows();
  // Neighbouring rows under the same rule are one flat range; the gaps between rows hold zeros.
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t last = first + 1;
    while (last < rows.size() && rows[last].decay == rows[first].decay) ++last;
    const std::int64_t begin = rows[first].offset;
    const std::int64_t end = last < rows.size() ? rows[last].offset : table_.flat_elements();
    const auto part = [&](const Tensor& flat) { return flat.slice(0, begin, end); };
    const double decay = rows[first].decay ? config_.weight_decay : 0.0;
    if (config_.name == "sgd") {
      ops.sgd(part(parameters), part(states_[0].flat), part(gradients), adamw.learning_rate,
              static_cast<float>(config_.momentum), static_cast<float>(decay),
              adamw.gradient_scale);
    } else {
      adamw.weight_decay = static_cast<float>(decay);
      ops.adamw(part(parameters), part(states_[0].flat), part(states_[1].flat), part(gradients),
                adamw);
    }
    first = last;
  }
}

}  // namespace trireme::optim
