// The kernels under the emulator, with our own product kernel; needs no device.
#include "../../src/ops/cuda/cuda_ops.hpp"
#include "harness.hpp"
#include "language.cuh"

namespace trireme::ops {

device::Device& tested_device() { return device::host_device(); }

std::unique_ptr<Ops> make_tested_ops(const CudaOpsOptions& options) {
  CudaParts parts(tested_device(), options.ledger);
  parts.reproducible = options.reproducible;
  return std::make_unique<CudaOps>(std::move(parts));
}

Ops& tested_ops() {
  static const std::unique_ptr<Ops> ops = make_tested_ops({});
  return *ops;
}

void disturb() {
  static int next = 0;
  constexpr emulator::Order orders[] = {emulator::Order::backwards, emulator::Order::shuffled,
                                        emulator::Order::forwards};
  emulator::set_order(orders[next++ % 3]);
}
bool is_emulated() { return true; }

}  // namespace trireme::ops

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::printf("seed %llu (TRIREME_TEST_SEED)\n",
              static_cast<unsigned long long>(trireme::ops::test_seed()));
  return RUN_ALL_TESTS();
}
