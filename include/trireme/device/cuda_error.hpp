// Results of CUDA's calls as errors. Apart from cuda.hpp, and without its headers, for nvcc.
#pragma once

namespace trireme::device {

/// Throws Error with the names of call and error and its text unless `code`, a cudaError_t, is 0.
void check_cuda(int code, const char* call);

}  // namespace trireme::device
