#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {

namespace {

enum class Method { adamw, sgd };

Method method_of(const OptimConfig& config) {
  if (config.name == "adamw") return Method::adamw;
  TRIREME_ASSERT(config.name == "sgd", "optimizer {}", config.name);
  return Method::sgd;
}

}  // namespace

double learning_rate(const OptimConfig& config, std::int64_t step, std::int64_t total) {
  const std::string& schedule = config.schedule;
  const bool cosine = schedule == "cosine", wsd = schedule == "wsd";
  TRIREME_ASSERT(cosine || wsd || schedule == "linear" || schedule == "constant",
                 "learning-rate schedule {}", schedule);
  const double peak = config.learning_rate;
  if (step < config.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (schedule == "constant") return peak;
  std::int64_t begin = config.warmup_steps;
  std::int64_t length = config.decay_steps > 0 ? config.decay_steps : total - begin;
  if (wsd) {
    length = config.decay_steps > 0 ? config.decay_steps : total / 10;
    begin = std::max(begin, total - length);
  }
  // The first step after `begin` still has the peak, the one at begin + length the final rate.
  const double share =
      length > 0
          ? std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0)
          : 1.0;
  const double fall = cosine ? 0.5 * (1 - std::cos(std::numbers::pi * share)) : share;
  return peak * (1 - (1 - config.final_learning_rate) * fall);
}

double clip_factor(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

void LossScale::note(bool overflowed) {
  if (!dynamic_) return;
  if (overflowed) {
    value_ = std::max(least, value_ / 2);
    steps_ = 0;
  } else if (++steps_ >= patience) {
    value_ = std::min(most, value_ * 2);
    steps_ = 0;
  }
}

void LossScale::restore(double value, std::int64_t steps_since_change) {
  int exponent = 0;
  const bool power = std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
  if (!power || value < least || value > most || steps_since_change < 0 ||
      steps_since_change >= patience) {
    throw Error("loss scale {} after {} steps: is damaged", value, steps_since_change);
  }
  if (!dynamic_) return;
  value_ = value;
  steps_ = steps_since_change;
}

std::vector<std::string> Optimizer::state_names(const OptimConfig& config) {
  switch (method_of(config)) {
    case Method::adamw:
      return {"adamw.moment1", "adamw.moment2"};
    case Method::sgd:
      return {"sgd.momentum"};
  }
  no_case_for(method_of(config));
}

Optimizer::Optimizer(const OptimConfig& config, std::int64_t elements, device::MemoryLedger& ledger,
                     bool offloaded, const Rounding& rounding)
    : config_(config), rounding_(rounding) {
  const auto names = state_names(config);
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  buffer_ =
      device::Buffer(ledger, offloaded ? device::Use::offloaded : device::Use::optimizer,
                     names.size() * bytes, offloaded ? device::host_device() : ledger.device());
  for (std::size_t i = 0; i < names.size(); ++i) {
    states_.push_back({names[i], buffer_.view(DType::f32, {elements}, i * bytes)});
  }
}

void Optimizer::update(ops::Ops& ops, std::span<const UpdateRange> ranges, double learning_rate,
                       std::int64_t step, double gradient_scale) {
  const Method method = method_of(config_);
  const auto t = static_cast<double>(step + 1);
  ops::AdamWStep adamw{.learning_rate = static_cast<float>(learning_rate),
                       .beta1 = static_cast<float>(config_.beta1),
                       .beta2 = static_cast<float>(config_.beta2),
                       .epsilon = static_cast<float>(config_.epsilon),
                       .correction1 = static_cast<float>(1 - std::pow(config_.beta1, t)),
                       .correction2 = static_cast<float>(1 - std::pow(config_.beta2, t)),
                       .gradient_scale = static_cast<float>(gradient_scale)};
  for (const UpdateRange& range : ranges) {
    const auto state = [&](std::size_t i) {
      return states_[i].flat.slice(0, range.offset, range.offset + range.parameters.elements());
    };
    adamw.weight_decay = range.decay ? static_cast<float>(config_.weight_decay) : 0.0F;
    const ops::RoundedCopy copy = rounding_.copy(range.rounded, range.indices, step + 1);
    switch (method) {
      case Method::adamw:
        ops.adamw(range.parameters, state(0), state(1), range.gradients, adamw, copy);
        break;
      case Method::sgd:
        ops.sgd(range.parameters, state(0), range.gradients, adamw.learning_rate,
                static_cast<float>(config_.momentum), adamw.weight_decay, adamw.gradient_scale,
                copy);
        break;
    }
  }
}

void Optimizer::round(ops::Ops& ops, const UpdateRange& range, std::int64_t updates) const {
  ops.round(rounding_.copy(range.rounded, range.indices, updates), range.parameters);
}

}  // namespace trireme::optim
