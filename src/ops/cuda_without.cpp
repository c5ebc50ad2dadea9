#include <cstdlib>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/ops/cuda_ops.hpp"

namespace trireme::ops {

CudaWithout read_cuda_without(std::string_view list) {
  constexpr std::pair<std::string_view, bool CudaWithout::*> names[] = {
      {"cudnn", &CudaWithout::cudnn},     {"cublaslt", &CudaWithout::cublaslt},
      {"bias", &CudaWithout::bias},       {"gelu", &CudaWithout::gelu},
      {"row_sum", &CudaWithout::row_sum}, {"timing", &CudaWithout::timing},
      {"split", &CudaWithout::split}};
  CudaWithout without;
  for (std::string_view rest = list; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
    bool known = false;
    for (const auto& [own, member] : names) {
      if (own != name) continue;
      without.*member = true;
      known = true;
    }
    if (!known) {
      throw Error(
          "TRIREME_CUDA_WITHOUT = {}: has no part \"{}\"; use names of cudnn, cublaslt, bias, "
          "gelu, row_sum, timing, split, separated by commas",
          list, name);
    }
  }
  return without;
}

const std::string& cuda_without() {
  static const std::string value = [] {
    const char* list = std::getenv("TRIREME_CUDA_WITHOUT");
    return std::string(list == nullptr ? "" : list);
  }();
  return value;
}

}  // namespace trireme::ops
