#include "trireme/plan/peak.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "trireme/core/random.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::plan {

using Clock = std::chrono::steady_clock;

std::vector<ProductShape> model_products(const model::Transformer& model, std::int64_t rows,
                                         DType type, bool on_gpu) {
  std::vector<ProductShape> shapes;
  for (const params::Parameter& row : model.table().rows()) {
    if (!row.in_products) continue;
    // The head works through the tokens block by block.
    const bool head = row.shape[0] == model.config().vocabulary;
    const std::int64_t m =
        head ? model::Head::block_rows(rows, row.shape[1], row.shape[0], type, on_gpu) : rows;
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
  return shapes;
}

void fill_with_noise(ops::Ops& ops, device::Device& device, device::MemoryLedger& ledger,
                     const Tensor& x) {
  const RandomKey key{1, Purpose::initialization, 0};
  std::vector<float> noise(static_cast<std::size_t>(std::min<std::int64_t>(x.elements(), 1 << 16)));
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = uniform(key, i) - 0.5F;
  const device::Buffer wide(ledger, device::Use::workspace, noise.size() * sizeof(float));
  const auto count = static_cast<std::int64_t>(noise.size());
  const Tensor part = wide.view(DType::f32, {1, count});
  device::write(device, part, noise.data());
  const Tensor flat = x.reshape({1, x.elements()});
  for (std::int64_t at = 0; at < x.elements(); at += count) {
    const std::int64_t end = std::min(at + count, x.elements());
    ops.copy(flat.slice(1, at, end), part.slice(1, 0, end - at));
  }
  device.synchronize();
}

double measure_copy(device::Device& device) {
  device::MemoryLedger ledger(device);
  const std::size_t bytes = std::size_t{1} << (device.is_host() ? 28 : 30);
  const device::Buffer from(ledger, device::Use::workspace, bytes);
  const device::Buffer to(ledger, device::Use::workspace, bytes);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    const int copies = device.is_host() ? 1 : 10;
    for (int i = 0; i < copies; ++i) device.copy(to.data(), from.data(), bytes);
    device.synchronize();
    best = std::max(best, 2.0 * copies * static_cast<double>(bytes) /
                              std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

double measure_product(ops::Ops& ops, device::Device& device, DType type, const ProductShape& shape,
                       double least_seconds) {
  // Measuring memory is given back at once and not the run's.
  device::MemoryLedger ledger(device);
  const auto make = [&](std::int64_t elements) {
    return device::Buffer(ledger, device::Use::workspace,
                          static_cast<std::size_t>(elements) * size_of(type));
  };
  const device::Buffer a = make(shape.m * shape.k), b = make(shape.n * shape.k),
                       c = make(shape.m * shape.n);
  const Tensor x = a.view(type, {shape.m, shape.k}), w = b.view(type, {shape.n, shape.k}),
               y = c.view(type, {shape.m, shape.n});
  fill_with_noise(ops, device, ledger, x);
  fill_with_noise(ops, device, ledger, w);
  // A device is given enough work at once that launching it does not count.
  const int calls = device.is_host() ? 1 : 16;
  double best = 0, spent = 0;
  for (int round = 0; round < 2 || spent < least_seconds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) ops.matmul(y, x, w, {.transpose_b = true});
    device.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    spent += seconds;
    best = std::max(best, calls * shape.operations() / seconds);
  }
  return best;
}

double measure_peak(ops::Ops& ops, device::Device& device, DType type,
                    const model::Transformer& model, std::int64_t rows, PeakEffort effort,
                    const std::function<void(const std::string& product)>& report) {
  const bool quick = effort == PeakEffort::quick;
  const double least = quick ? 0.03 : 0.1;
  std::vector<ProductShape> shapes = model_products(model, rows, type, !device.is_host());
  shapes.resize(std::min<std::size_t>(shapes.size(), 3));
  double best = 0;
  const auto measure = [&](const ProductShape& shape) {
    if (report) report(fmt::format("{} x {} x {}", shape.m, shape.n, shape.k));
    best = std::max(best, measure_product(ops, device, type, shape, least));
  };
  for (const ProductShape& shape : shapes) measure(shape);
  for (std::int64_t n : {1024, 2048, 4096, 8192}) {
    if (n > 4096 && device.is_host()) continue;
    const ProductShape square{n, n, n};
    // Two of it, as fast as the best so far.
    if (quick && n > 1024 && 2 * square.operations() > 0.1 * best) continue;
    measure(square);
  }
  return best;
}

}  // namespace trireme::plan
