#include "trireme/plan/peak.hpp"

#include <algorithm>
#include <chrono>

#include "trireme/device/memory.hpp"

namespace trireme::plan {

std::vector<ProductShape> largest_products(const model::Transformer& model, std::int64_t rows) {
  std::vector<ProductShape> shapes;
  for (const params::Parameter& row : model.table().rows()) {
    if (!row.in_products) continue;
    // The head works through the tokens block by block.
    const bool head = row.shape[0] == model.config().vocabulary;
    const std::int64_t m = head ? model::Head::block_rows(rows, row.shape[0]) : rows;
    shapes.push_back({m, row.shape[0], row.shape[1]});
  }
  const auto order = [](const ProductShape& p) {
    return std::tuple(-p.operations(), p.m, p.n, p.k);
  };
  std::sort(shapes.begin(), shapes.end(),
            [&](const ProductShape& a, const ProductShape& b) { return order(a) < order(b); });
  const auto same = [&](const ProductShape& a, const ProductShape& b) {
    return order(a) == order(b);
  };
  shapes.erase(std::unique(shapes.begin(), shapes.end(), same), shapes.end());
  shapes.resize(std::min<std::size_t>(shapes.size(), 3));
  return shapes;
}

double measure_product(ops::Ops& ops, const ProductShape& shape) {
  using Clock = std::chrono::steady_clock;
  device::MemoryLedger ledger;  // measuring memory is given back at once and not the run's
  const auto bytes = [](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(float);
  };
  const device::Buffer a(ledger, device::Use::workspace, bytes(shape.m * shape.k));
  const device::Buffer b(ledger, device::Use::workspace, bytes(shape.n * shape.k));
  const device::Buffer c(ledger, device::Use::workspace, bytes(shape.m * shape.n));
  const Tensor x = a.view(DType::f32, {shape.m, shape.k}),
               w = b.view(DType::f32, {shape.n, shape.k});
  // Not zeros: some processors multiply those faster.
  ops.fill(x, 0.5F);
  ops.fill(w, 0.25F);
  double best = 0, spent = 0;
  for (int call = 0; call < 2 || spent < 0.1; ++call) {
    const auto begin = Clock::now();
    ops.matmul(c.view(DType::f32, {shape.m, shape.n}), x, w, {.transpose_b = true});
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    spent += seconds;
    best = std::max(best, shape.operations() / seconds);
  }
  return best;
}

double measure_peak(ops::Ops& ops, const model::Transformer& model, std::int64_t rows) {
  std::vector<ProductShape> shapes = largest_products(model, rows);
  for (std::int64_t n : {1024, 2048, 4096}) shapes.push_back({n, n, n});
  double best = 0;
  for (const ProductShape& shape : shapes) best = std::max(best, measure_product(ops, shape));
  return best;
}

}  // namespace trireme::plan
