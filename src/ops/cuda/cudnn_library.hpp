// Where cuDNN comes from: its frontend looks up every function in a library that is loaded when it
// is first needed, so that processes without a GPU neither wait for it nor need it.
#pragma once

#include <string>

namespace trireme::ops {

/// Loads cuDNN, once for all; why it could not be, or empty.
const std::string& load_cudnn();

}  // namespace trireme::ops
