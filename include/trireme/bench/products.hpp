// Matrix products of given shapes: speed, share of the peak, and whether the results are right.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/bench/measure.hpp"
#include "trireme/bench/sheet.hpp"
#include "trireme/plan/peak.hpp"

namespace trireme::bench {

/// c [m, n] of a·b (NN), a·bᵀ (NT: a layer's forward) or aᵀ·b (TN: a weight's gradient, added in
/// fp32).
enum class Form : std::uint8_t { nn, nt, tn };
std::string_view name_of(Form form);

struct Product {
  plan::ProductShape shape;
  Form form = Form::nt;
};

/// The products of a layer's forward (NT), backward for inputs (NN) and for weights (TN), where
/// `forward` is the first.
std::vector<Product> products_of_layer(const plan::ProductShape& forward);

struct ProductOptions {
  std::vector<Product> products;
  std::vector<DType> types;
  double peak = 0;  // operations per second of a rank; 0: square products, measured in each type
  Rounds rounds;
};

/// Every rank makes its own products, all at once; collective over the world.
void bench_products(const Place& place, const ProductOptions& options, Sheet& sheet);

}  // namespace trireme::bench
