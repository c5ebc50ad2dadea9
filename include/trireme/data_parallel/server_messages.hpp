// Messages between workers and parameter servers. In synchronous training each
// worker pushes its gradients while backward continues, asks for the norm of their sum, and settles
// whether the step updates the model or is skipped. Once all have, it pulls the model. In
// asynchronous training each asks the first server for a ticket, pulls the model, pushes its
// gradients and commits them.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/data_parallel/tickets.hpp"

namespace trireme::data_parallel::messages {

using comm::rpc::Method;
using comm::rpc::Nothing;

/// `number` is a ticket, or a step: these count from 0 from the start of the job, skipped ones too.
/// A message that comes in another step than it belongs to is an error. Asynchronous pulls do not
/// use it.
struct GroupOf {
  std::int64_t number = 0;
  std::int64_t group = 0;  // of the layout
};

/// A worker's gradient of the server's part of a group, as bulk.
inline constexpr Method<GroupOf, Nothing> push{"push"};
/// The server's part of a group of the model, as bulk. Synchronous: the model after `number` steps;
/// a worker may pull it together with the settlement of the last one. Asynchronous: the newest
/// model, and the reply is its number of updates.
inline constexpr Method<GroupOf, std::int64_t> pull{"pull"};

/// Whether and how a step updates the model; the same from all workers.
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

/// Answered when all workers' gradients are there. The worker's own must have been answered.
inline constexpr Method<std::int64_t, NormOfStep> norm{"norm"};
/// Answered when all workers have settled the step and it is done.
inline constexpr Method<Settlement, Nothing> settle{"settle"};
/// From worker 0 between steps: runs the job of that name on the bulk. The reply is '+' and the
/// job's text, or '-' and the reason why it failed.
inline constexpr Method<std::string, std::string> work{"work"};
/// From worker 0: no step follows. The text is the error that ends the job, empty where none does.
inline constexpr Method<std::string, Nothing> end{"end"};

/// The result of the worker's previous ticket.
struct Outcome {
  std::int64_t number = -1;     // of the ticket; −1: there was none
  double loss = 0, weight = 0;  // sums, as LossSum
  double norm = 0;              // of the gradient
  std::int64_t skipped = 0;     // 1: loss or norm is not finite, and nothing was pushed
};

/// What a worker is to do next; answered by the first server as soon as there is something.
struct Work {
  Ticket ticket;
  double learning_rate = 0;
  std::int64_t ending = 0;  // of a job that is left: train::Ending
};

/// The worker has pushed all gradients of the ticket: the server applies or drops them, see `use`.
struct Commit {
  std::int64_t ticket = 0;
  std::int64_t version = 0;  // of the model that the worker pulled
  double learning_rate = 0, gradient_scale = 0;
  std::int64_t use = 1;  // 0: they are dropped, since the worker found them unusable
};

inline constexpr Method<Outcome, Work> ask{"ask"};
/// Updates. What another worker has committed for the same ticket is not used again.
inline constexpr Method<Commit, Nothing> commit{"commit"};
/// A signal that asks for the run's end has come to the caller; its number.
inline constexpr Method<std::int64_t, Nothing> interrupt{"interrupt"};
/// A worker's account for the record, before it leaves.
inline constexpr Method<std::string, Nothing> account{"account"};
/// From the first server to the others. `save`: all save together, with the state in the bulk.
/// `leave`: the server ends, and replies with its account for the record.
inline constexpr Method<Nothing, Nothing> save{"save"};
inline constexpr Method<Nothing, std::string> leave{"leave"};

inline std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()), tensor.bytes()};
}

}  // namespace trireme::data_parallel::messages
