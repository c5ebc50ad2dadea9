// Loads cuDNN at first use, so that processes without a GPU do not need it. Its frontend looks up
// all functions in the loaded library.
#pragma once

#include <string>

namespace trireme::ops {

/// Loads cuDNN once; returns why it could not be loaded, or an empty string.
const std::string& load_cudnn();

}  // namespace trireme::ops
