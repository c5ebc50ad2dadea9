#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"

namespace trireme::device {
namespace {

[[noreturn]] void refuse(int index) {
  throw Error(
      "device cuda:{}: this trireme was built without CUDA; use --device cpu, or build it where "
      "CUDA is found (-DTRIREME_CUDA=ON)",
      index);
}

}  // namespace

int cuda_device_count() { return 0; }

std::unique_ptr<Device> make_cuda_device(int index) { refuse(index); }

std::string cuda_device_identity(int index) { refuse(index); }

std::string cuda_description() { return "built without CUDA"; }

Range::Range(const char* /*name*/) {}
Range::~Range() = default;

}  // namespace trireme::device
