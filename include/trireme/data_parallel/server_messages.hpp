// Messages between workers and parameter servers in a synchronous step: each worker pushes
// its gradients while backward goes on, asks for the norm of their sum, and settles what is to be
// made of the step; once all have, it pulls the model.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::data_parallel::messages {

using comm::rpc::Method;
using comm::rpc::Nothing;

/// Steps count from 0 from the start of the job, skipped ones too: a message that comes in another
/// step than it belongs to is an error.
struct GroupOfStep {
  std::int64_t step = 0;
  std::int64_t group = 0;  // of the layout
};

/// What is to be made of a step; the same from all workers.
struct Settlement {
  std::int64_t step = 0;
  std::int64_t update = 0;  // 0: none, the step is skipped
  std::int64_t number = 0;  // of the update, from 0
  double learning_rate = 0, gradient_scale = 0;
  bool operator==(const Settlement&) const = default;
};

struct NormOfStep {
  double norm = 0;
  std::int64_t signal = 0;  // that the server has caught; 0: none
};

/// A worker's gradient of the server's part of a group, as bulk.
inline constexpr Method<GroupOfStep, Nothing> push{"push"};
/// Answered when all workers' gradients are there. The worker's own must have been answered.
inline constexpr Method<std::int64_t, NormOfStep> norm{"norm"};
/// Answered when all workers have settled the step and it is done.
inline constexpr Method<Settlement, Nothing> settle{"settle"};
/// The server's part of a group of the model after so many steps, as bulk; may be asked for at once
/// with the settlement of the last of them.
inline constexpr Method<GroupOfStep, Nothing> pull{"pull"};
/// From worker 0 between steps: the job of that name on what comes as bulk. The reply is its text
/// after '+', or after '-' why it failed.
inline constexpr Method<std::string, std::string> work{"work"};
/// From worker 0: no step follows. The text is the error that ends the job, empty where none does.
inline constexpr Method<std::string, Nothing> end{"end"};

/// Options with which none of these calls waits for its turn, for a layout of so many groups.
inline comm::rpc::Options options(int groups) {
  comm::rpc::Options options;
  options.outstanding = 2 * groups + 4;
  return options;
}

inline std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), tensor.bytes()};
}

}  // namespace trireme::data_parallel::messages
