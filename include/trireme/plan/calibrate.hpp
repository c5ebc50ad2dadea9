// A machine's constants from measured steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/plan/step_time.hpp"

namespace trireme::plan {

/// A layout whose step was measured.
struct MeasuredStep {
  std::string name;
  comm::GridShape shape;
  StageClasses stages;
  double seconds = 0;
};

/// Predicted seconds of each.
std::vector<double> predict_all(const std::vector<MeasuredStep>& steps, const Machine& machine);

/// ln(predicted/measured) of each measurement.
using Residuals = std::function<std::vector<double>(const Machine&)>;

/// The machine whose values of `keys` (numbers above 0, of Machine::declare) minimize the weighted
/// sum of Huber's loss (1964) of the residuals, which is the square up to 0.1, plus 0.02 times the
/// square of each key's logarithmic distance from `start`. Found by Levenberg (1944) and Marquardt
/// (1963) on logarithms, within each key's rule. Throws ConfigError for a key that is no such
/// number.
Machine fit(const Machine& start, const std::vector<std::string>& keys, const Residuals& residuals,
            const std::vector<double>& weights);
/// The same of steps, of equal weight. Throws Error for a step without a finite ratio.
Machine calibrate(const Machine& start, const std::vector<std::string>& keys,
                  const std::vector<MeasuredStep>& steps);

}  // namespace trireme::plan
