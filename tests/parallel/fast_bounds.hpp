// Error bounds of the fast mode against one rank; docs/reproducibility.md derives them.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <mpi.h>

#include "layouts.hpp"

namespace trireme::parallel::test {

/// The largest observed/bound of each kind.
struct BoundUse {
  enum Kind : std::uint8_t { gradient, norm, loss, count };
  std::array<double, count> largest{};
  /// Whether `ratio` keeps the bound; a NaN does not.
  bool note(Kind kind, double ratio) {
    double& most = largest.at(kind);
    if (!(ratio <= most)) most = ratio;
    return ratio <= 1;
  }
  void reduce(MPI_Comm comm) {
    MPI_Allreduce(MPI_IN_PLACE, largest.data(), count, MPI_DOUBLE, MPI_MAX, comm);
  }
  std::string to_string() const {
    return fmt::format(
        "largest observed/bound: gradients {:.3f}, gradient norm {:.3f}, losses {:.3f}",
        largest[gradient], largest[norm], largest[loss]);
  }
  /// A bound of more than 100 times the observed error proves nothing.
  bool tight() const {
    return std::all_of(largest.begin(), largest.end(), [](double ratio) { return ratio >= 0.01; });
  }
};

/// Bound of the difference between two fp32 runs' gradients of a row of unit `unit`, over their
/// norm: the errors of all sums between the tokens and the gradient, each of n terms √(n/2)·u in
/// the statistical model, in quadrature, for both runs.
inline double gradient_bound(const model::ModelConfig& config, std::int64_t unit,
                             std::int64_t tokens) {
  const std::int64_t c = config.width;
  // norm, q|k|v, scores, mixture of values, projection, norm, up, down
  const std::int64_t block = 5 * c + config.hidden + config.head_size() + config.sequence;
  const std::int64_t head = 2 * (c + config.vocabulary);
  // Forward runs through all blocks, backward from the last to the row's own.
  const std::int64_t back = std::min(config.layers, config.layers + 1 - unit);
  const std::int64_t blocks = config.layers + back;
  return std::ldexp(std::sqrt(static_cast<double>(tokens + head + blocks * block)), -24);
}

/// Empty, or what of `other` exceeds its bound against one rank's result.
inline std::string out_of_bounds(const model::ModelConfig& config, std::int64_t tokens,
                                 const RunResult& one, const RunResult& other, BoundUse& use) {
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    const double error = std::abs(other.losses[step] - one.losses[step]);
    if (use.note(BoundUse::loss, error / (1e-5 * one.losses[step]))) continue;
    return fmt::format("step {}: loss {:.9g} and {:.9g}", step, one.losses[step],
                       other.losses[step]);
  }
  std::vector<double> norms, errors;
  double all = 0;
  for (std::size_t t = 0; t < one.gradients.size(); ++t) {
    double squares = 0, error = 0;
    for (std::size_t i = 0; i < one.gradients[t].size(); ++i) {
      const double g = one.gradients[t][i], e = other.gradients[t][i] - g;
      squares += g * g;
      error += e * e;
    }
    all += squares;
    norms.push_back(std::sqrt(squares));
    errors.push_back(std::sqrt(error));
  }
  const model::Transformer model(config);
  // Some gradients are zero up to rounding (key biases).
  const double least = 1e-2 * std::sqrt(all / static_cast<double>(norms.size()));
  for (std::size_t t = 0; t < norms.size(); ++t) {
    const std::int64_t unit = model.table().rows()[t].units.front();
    const double bound = gradient_bound(config, unit, tokens) * std::max(norms[t], least);
    if (use.note(BoundUse::gradient, errors[t] / bound)) continue;
    return fmt::format("step 0: gradient of {} is off by {:.3g}, {:.3g} allowed", one.names[t],
                       errors[t], bound);
  }
  // Later norms belong to other weights.
  const double error = std::abs(other.norms[0] - one.norms[0]);
  if (!use.note(BoundUse::norm, error / (1e-6 * one.norms[0]))) {
    return fmt::format("step 0: gradient norm {:.9g} and {:.9g}", one.norms[0], other.norms[0]);
  }
  const double after = std::abs(other.evaluation[0] - one.evaluation[0]);
  if (!use.note(BoundUse::loss, after / (1e-5 * one.evaluation[0]))) {
    return fmt::format("evaluation: {:.9g} and {:.9g}", one.evaluation[0], other.evaluation[0]);
  }
  return {};
}

}  // namespace trireme::parallel::test
