#include "trireme/train/health.hpp"

#include <cmath>

#include "trireme/core/error.hpp"

namespace trireme::train {

namespace {

/// Standard deviations that `value` lies above the mean of `past`; 0 where they are all the same.
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

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view names[] = {"sound", "overflow", "not finite", "outlier"};
  return names[static_cast<std::size_t>(verdict)];
}

Verdict Health::judge(double loss, double norm, bool scaled) const {
  if (scaled && std::isfinite(loss) && !std::isfinite(norm)) return Verdict::overflow;
  if (!std::isfinite(loss) || !std::isfinite(norm)) return Verdict::not_finite;
  if (limit_ <= 0 || losses_.size() < least) return Verdict::sound;
  const bool far =
      deviations_above(losses_, loss) > limit_ || deviations_above(norms_, norm) > limit_;
  return far ? Verdict::outlier : Verdict::sound;
}

void Health::note(Verdict verdict, double loss, double norm) {
  if (verdict == Verdict::overflow) return;
  if (verdict != Verdict::sound) {
    ++skipped_;
    return;
  }
  skipped_ = 0;
  if (limit_ <= 0) return;
  remember(losses_, loss);
  remember(norms_, norm);
}

nlohmann::json Health::to_json() const {
  return {{"losses", losses_}, {"norms", norms_}, {"skipped_in_a_row", skipped_}};
}

void Health::from_json(const nlohmann::json& json) {
  const auto numbers = [&](const char* key) {
    std::deque<double> values;
    for (const auto& value : json.at(key)) {
      if (!value.is_number() || values.size() == window) throw Error("health: {} is damaged", key);
      values.push_back(value.get<double>());
    }
    return values;
  };
  try {
    losses_ = numbers("losses");
    norms_ = numbers("norms");
    skipped_ = json.at("skipped_in_a_row").get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw Error("health: {}", error.what());
  }
  if (losses_.size() != norms_.size()) throw Error("health: losses and norms differ in number");
}

}  // namespace trireme::train
