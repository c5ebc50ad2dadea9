#include "trireme/train/health.hpp"

#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme::train {

namespace {

/// By how many standard deviations `value` is above the mean of `past`; 0 where all are the same.
double deviations_above(const std::deque<double>& past, double value) {
  const auto n = static_cast<double>(past.size());
  double mean = 0, squares = 0;
  for (const double each : past) mean += each / n;
  for (const double each : past) squares += (each - mean) * (each - mean);
  const double deviation = std::sqrt(squares / (n - 1));
  return deviation > 0 ? (value - mean) / deviation : 0;
}

void remember(std::deque<double>& past, double value) {
  past.push_back(value);
  if (past.size() > Health::window) past.pop_front();
}

}  // namespace

std::string_view name_of(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::sound:
      return "sound";
    case StepOutcome::overflow:
      return "overflow";
    case StepOutcome::not_finite:
      return "not finite";
    case StepOutcome::outlier:
      return "outlier";
  }
  no_case_for(outcome);
}

StepOutcome Health::judge(double loss, double norm) const {
  const bool overflow = std::isfinite(loss) && !std::isfinite(norm);
  if (overflow && loss_scale_.may_shrink()) return StepOutcome::overflow;
  if (!std::isfinite(loss) || !std::isfinite(norm)) return StepOutcome::not_finite;
  if (limit_ <= 0 || losses_.size() < least) return StepOutcome::sound;
  const bool far =
      deviations_above(losses_, loss) > limit_ || deviations_above(norms_, norm) > limit_;
  return far ? StepOutcome::outlier : StepOutcome::sound;
}

void Health::note(StepOutcome outcome, double loss, double norm) {
  if (outcome <= StepOutcome::overflow) loss_scale_.note(outcome == StepOutcome::overflow);
  if (outcome == StepOutcome::overflow) return;
  if (outcome != StepOutcome::sound) {
    ++skipped_;
    return;
  }
  skipped_ = 0;
  if (limit_ <= 0) return;
  remember(losses_, loss);
  remember(norms_, norm);
}

nlohmann::json Health::to_json() const {
  nlohmann::json json{
      {"health", {{"losses", losses_}, {"norms", norms_}, {"skipped_in_a_row", skipped_}}}};
  if (loss_scale_.dynamic()) {
    json["loss_scale"] = {{"value", loss_scale_.value()},
                          {"steps_since_change", loss_scale_.steps_since_change()}};
  }
  return json;
}

void Health::from_json(const nlohmann::json& kept, const std::string& where) {
  const auto damaged = [&](const char* what) {
    return Error("{}: its {} damaged; use another checkpoint", where, what);
  };
  const auto numbers = [&](const nlohmann::json& list) {
    std::deque<double> values;
    for (const auto& value : list) {
      if (!value.is_number() || values.size() == window) throw damaged("health is");
      values.push_back(value.get<double>());
    }
    return values;
  };
  try {
    if (kept.contains("health")) {
      const nlohmann::json& health = kept.at("health");
      losses_ = numbers(health.at("losses"));
      norms_ = numbers(health.at("norms"));
      skipped_ = health.at("skipped_in_a_row").get<std::int64_t>();
      if (losses_.size() != norms_.size()) throw damaged("health is");
    }
  } catch (const nlohmann::json::exception&) {
    throw damaged("health is");
  }
  if (!kept.contains("loss_scale")) return;
  const nlohmann::json& scale = kept.at("loss_scale");
  const bool whole = scale.is_object() && scale.contains("value") &&
                     scale.contains("steps_since_change") && scale.at("value").is_number() &&
                     scale.at("steps_since_change").is_number_integer();
  if (!whole) throw damaged("loss_scale is");
  loss_scale_.restore(scale.at("value").get<double>(),
                      scale.at("steps_since_change").get<std::int64_t>());
}

}  // namespace trireme::train
