// The first GPU of this machine. Exits with 77 if there is none.
#include <cstdio>
#include <exception>

#include "trireme/device/cuda.hpp"

#include "harness.hpp"

namespace trireme::ops {

device::Device& tested_device() {
  static const std::unique_ptr<device::Device> device = device::make_cuda_device(0);
  return *device;
}

std::unique_ptr<Ops> make_tested_ops(const CudaOpsOptions& options) {
  return make_cuda_ops(tested_device(), options);
}

Ops& tested_ops() {
  static const std::unique_ptr<Ops> ops = make_tested_ops({});
  return *ops;
}

void disturb() {}
bool is_emulated() { return false; }

}  // namespace trireme::ops

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr int skipped = 77;
  if (trireme::device::cuda_device_count() == 0) {
    std::printf("no CUDA device (%s)\n", trireme::device::cuda_description().c_str());
    return skipped;
  }
  std::printf("%s; %s\nseed %llu (TRIREME_TEST_SEED)\n",
              trireme::device::cuda_description().c_str(), trireme::ops::cuda_libraries().c_str(),
              static_cast<unsigned long long>(trireme::ops::test_seed()));
  return RUN_ALL_TESTS();
}
