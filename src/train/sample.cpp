#include "trireme/train/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace trireme::train {

std::int64_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k,
                          double top_p, double u) {
  const auto count = static_cast<std::int64_t>(logits.size());
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  std::sort(order.begin(), order.end(), likelier);
  if (temperature == 0) return order.front();
  order.resize(static_cast<std::size_t>(top_k > 0 ? std::min(top_k, count) : count));
  const double largest = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weights;
  for (std::int64_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - largest) / temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t end = 0;
  while (end < weights.size() && (end == 0 || kept < top_p * all)) kept += weights[end++];
  double left = u * kept;
  for (std::size_t i = 0; i + 1 < end; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[end - 1];
}

}  // namespace trireme::train
