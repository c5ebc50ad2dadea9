// The matrix-product peak that MFU refers to when no nominal one is given, and that of copies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
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

/// All forward products of the model that differ, computing in `type` on a GPU or a CPU, for
/// micro-batches of `rows` tokens; the largest first.
std::vector<ProductShape> model_products(const model::Transformer& model, std::int64_t rows,
                                         DType type, bool on_gpu);

/// Fills x, contiguous, with values as a layer's are: where all are alike, a device draws less
/// power and may run faster than it ever will in training.
void fill_with_noise(ops::Ops& ops, device::Device& device, device::MemoryLedger& ledger,
                     const Tensor& x);

/// Bytes read and written per second by the best of some large copies inside the device.
double measure_copy(device::Device& device);

/// Operations per second of one product of `type` on the device of `ops`, the best of at least two
/// rounds and `least_seconds`.
double measure_product(ops::Ops& ops, device::Device& device, DType type, const ProductShape& shape,
                       double least_seconds = 0.1);

/// How much time the peak may take. Benchmarks measure all products; a run starts sooner without
/// the squares above 1024 of which two products would take more than a tenth of a second.
enum class PeakEffort : std::uint8_t { quick, thorough };

/// The best over the model's three largest products and square products of 1024, 2048 and 4096 (on
/// a device that is not the host 8192 too). `report` gets each product before it is measured, as
/// "1024 x 1024 x 1024".
double measure_peak(ops::Ops& ops, device::Device& device, DType type,
                    const model::Transformer& model, std::int64_t rows,
                    PeakEffort effort = PeakEffort::thorough,
                    const std::function<void(const std::string& product)>& report = {});

}  // namespace trireme::plan
