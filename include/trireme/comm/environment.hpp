// Ranks must compute alike: the same instructions and the same libraries everywhere.
#pragma once

#include <span>
#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// What the bits of a rank's kernels depend on.
struct Environment {
  std::string instructions;  // the set that the kernels use: "AVX-512"
  std::string libraries;     // their versions: "oneDNN 2.6.3, …"
};

/// What is wrong with ranks of such environments, in rank order: one line that names two ranks that
/// differ and their values; empty when all are alike.
std::string environment_complaint(std::span<const Environment> ranks);

/// Compares all ranks' environments; collective. Throws AgreedError with the complaint.
void require_same_environment(Communicator& world, const Environment& own);

}  // namespace trireme::comm
