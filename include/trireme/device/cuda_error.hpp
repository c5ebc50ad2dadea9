// Results of CUDA's calls as errors. Apart from cuda.hpp, and without its headers, for nvcc.
#pragma once

namespace trireme::device {

/// Throws Error with the call's name and the error's name and text unless `code`, a cudaError_t, is
/// success.
void check_cuda(int code, const char* call);

}  // namespace trireme::device
