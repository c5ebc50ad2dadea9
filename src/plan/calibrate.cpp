#include "trireme/plan/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "trireme/core/error.hpp"

namespace trireme::plan {

namespace {

using Vector = std::vector<double>;

config::Field& field_of(config::Fields& fields, const std::string& key) {
  config::Field* field = fields.find(key);
  const bool number = field != nullptr && (std::holds_alternative<double*>(field->target));
  if (!number) {
    throw ConfigError("--fit", key, "must be a key of a machine file whose value may be fractional",
                      "use products.efficiency, …");
  }
  return *field;
}

double value_of(const Machine& machine, const std::string& key) {
  Machine copy = machine;
  config::Fields fields;
  copy.declare(fields);
  return std::get<double>(field_of(fields, key).value());
}

/// The logarithm of the nearest number that the key's rule lets pass, where that of `logarithm` is
/// none: rules bound efficiencies and slowdowns, by these.
double nearest_bound(const config::Field& field, double logarithm) {
  double nearest = std::numeric_limits<double>::infinity();
  for (const double bound : {0.001, 0.01, 1.0}) {
    const double there = std::log(bound);
    const bool nearer = std::abs(there - logarithm) < std::abs(nearest - logarithm);
    if (nearer && field.rule.kept(config::Value(bound))) nearest = there;
  }
  TRIREME_ASSERT(std::isfinite(nearest), "no bound of {}", field.key);
  return nearest;
}

/// With e^logarithm for each key, or the nearest that its rule lets pass.
Machine with(const Machine& start, const std::vector<std::string>& keys, Vector& logarithms) {
  Machine machine = start;
  config::Fields fields;
  machine.declare(fields);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const config::Field& field = field_of(fields, keys[i]);
    *std::get<double*>(field.target) = std::exp(logarithms[i]);
    if (field.rule.kept(field.value())) continue;
    logarithms[i] = nearest_bound(field, logarithms[i]);
    *std::get<double*>(field.target) = std::exp(logarithms[i]);
  }
  return machine;
}

Vector residuals(const std::vector<MeasuredStep>& steps, const Machine& machine) {
  Vector result = predict_all(steps, machine);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double ratio = result[i] / steps[i].seconds;
    result[i] = std::log(ratio);
    if (std::isfinite(result[i])) continue;
    throw Error("plan: {}: predicted {:g} s, measured {:g} s: no ratio to fit; mend the row",
                steps[i].name, ratio * steps[i].seconds, steps[i].seconds);
  }
  return result;
}

/// Huber (1964): residuals beyond `usual` count by their size and not by its square, so that a few
/// steps that something disturbed do not bend the fit.
constexpr double usual = 0.1;
double loss(const Vector& values, const Vector& weights) {
  double sum = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const double r = std::abs(values[k]);
    sum += weights[k] * (r <= usual ? r * r : usual * (2 * r - usual));
  }
  return sum;
}
double product(const Vector& a, const Vector& b, const Vector& residuals, const Vector& weights) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double r = std::abs(residuals[k]);
    sum += weights[k] * (r <= usual ? 1 : usual / r) * a[k] * b[k];
  }
  return sum;
}

/// Solves a·x = b, a symmetric and positive definite, by Cholesky's decomposition.
Vector solve(std::vector<Vector> a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t k = 0; k < j; ++k) a[j][j] -= a[j][k] * a[j][k];
    a[j][j] = std::sqrt(std::max(a[j][j], 1e-300));
    for (std::size_t i = j + 1; i < n; ++i) {
      for (std::size_t k = 0; k < j; ++k) a[i][j] -= a[i][k] * a[j][k];
      a[i][j] /= a[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

std::vector<double> predict_all(const std::vector<MeasuredStep>& steps, const Machine& machine) {
  Vector seconds(steps.size());
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const MeasuredStep& step = steps[i];
    try {
      seconds[i] = simulate(step.shape, step.stages.classes, step.stages.class_of, machine).seconds;
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  return seconds;
}

Machine calibrate(const Machine& start, const std::vector<std::string>& keys,
                  const std::vector<MeasuredStep>& steps) {
  return fit(
      start, keys, [&](const Machine& machine) { return residuals(steps, machine); },
      Vector(steps.size(), 1.0));
}

Machine fit(const Machine& start, const std::vector<std::string>& keys, const Residuals& residuals,
            const std::vector<double>& weights) {
  constexpr int most_rounds = 30;
  constexpr double change = 0.02, enough = 1e-4, weak = 0.02;
  const std::size_t n = keys.size();
  Vector x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double value = value_of(start, keys[i]);
    if (value <= 0) {
      throw ConfigError("--fit", keys[i], "begins at 0, which has no logarithm",
                        "give it a value above 0 in the machine file");
    }
    x[i] = std::log(value);
  }
  const Vector first = x;
  // Weakly held to where they begin, so that what the steps do not depend on stays.
  const auto cost = [&](const Vector& r, const Vector& at) {
    double sum = loss(r, weights);
    for (std::size_t i = 0; i < n; ++i) sum += weak * (at[i] - first[i]) * (at[i] - first[i]);
    return sum;
  };
  Vector r = residuals(with(start, keys, x));
  double best = cost(r, x), damping = 1e-2;
  for (int round = 0; round < most_rounds; ++round) {
    std::vector<Vector> slopes;
    for (std::size_t i = 0; i < n; ++i) {
      Vector moved = x;
      moved[i] -= change;
      Vector slope = residuals(with(start, keys, moved));
      for (std::size_t k = 0; k < slope.size(); ++k) slope[k] = (r[k] - slope[k]) / change;
      slopes.push_back(std::move(slope));
    }
    bool better = false;
    const double before = best;
    for (int attempt = 0; attempt < 8 && !better; ++attempt) {
      std::vector<Vector> a(n, Vector(n));
      Vector b(n);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          a[i][j] = product(slopes[i], slopes[j], r, weights);
        }
        a[i][i] += weak + damping * (a[i][i] + 1e-9);
        b[i] = -product(slopes[i], r, r, weights) - weak * (x[i] - first[i]);
      }
      const Vector step = solve(std::move(a), std::move(b));
      Vector next = x;
      for (std::size_t i = 0; i < n; ++i) next[i] += std::clamp(step[i], -1.0, 1.0);
      Vector there = residuals(with(start, keys, next));
      const double now = cost(there, next);
      if (now < best) {
        x = std::move(next);
        r = std::move(there);
        best = now;
        damping = std::max(damping / 5, 1e-9);
        better = true;
      } else {
        damping *= 4;
      }
    }
    if (!better || before - best < enough * before) break;
  }
  Machine result = with(start, keys, x);
  config::Fields fields;
  result.declare(fields);
  for (const std::string& key : keys) {
    double& value = *std::get<double*>(field_of(fields, key).target);
    value = std::stod(fmt::format("{:.4g}", value));  // no fit knows more
  }
  return result;
}

}  // namespace trireme::plan
