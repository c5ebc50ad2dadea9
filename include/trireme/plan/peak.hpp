// The matrix-product peak that MFU refers to when no nominal one is given.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/model/transformer.hpp"
#include "trireme/ops/ops.hpp"

namespace trireme::plan {

/// One product c [m, n] = a [m, k]·bᵀ [k, n].
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  double operations() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// The three largest forward products of the model for micro-batches of `rows` tokens.
std::vector<ProductShape> largest_products(const model::Transformer& model, std::int64_t rows);

/// Operations per second of one product, the best of at least two calls and about a tenth of a
/// second.
double measure_product(ops::Ops& ops, const ProductShape& shape);

/// The best over square products of 1024, 2048 and 4096 and the model's three largest, with the
/// threads and type of `ops`. Takes a few seconds.
double measure_peak(ops::Ops& ops, const model::Transformer& model, std::int64_t rows);

}  // namespace trireme::plan
