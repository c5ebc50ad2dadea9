// Messages between workers and parameter servers where no worker waits for another.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/rpc.hpp"
#include "trireme/data_parallel/tickets.hpp"

namespace trireme::data_parallel::async {

using comm::rpc::Method;
using comm::rpc::Nothing;

/// What became of the ticket before.
struct Outcome {
  std::int64_t number = -1;     // of the ticket; −1: there was none
  double loss = 0, weight = 0;  // sums, as LossSum
  double norm = 0;              // of the gradient
  std::int64_t staleness = 0;   // of the update at the first server
  std::int64_t skipped = 0;     // 1: loss or norm is not finite, and nothing was pushed
  double seconds = 0;
};

/// What a worker is to do next; answered by the first server as soon as there is something.
struct Work {
  Ticket ticket;
  double learning_rate = 0;
  std::int64_t ending = 0;  // of a job that is left: train::Ending
};

struct GroupOfTicket {
  std::int64_t ticket = 0;
  std::int64_t group = 0;  // of the layout
};

/// All of the worker's gradients for the ticket are here: they are to be used.
struct Commit {
  std::int64_t ticket = 0;
  std::int64_t version = 0;  // of the model that the worker pulled
  double learning_rate = 0, gradient_scale = 0;
  std::int64_t use = 1;  // 0: they are dropped, since the worker found them unusable
};

inline constexpr Method<Outcome, Work> ask{"ask"};
/// A worker's gradient of the server's part of a group, as bulk.
inline constexpr Method<GroupOfTicket, Nothing> push{"push"};
/// Updates; replies how many updates others had made since the worker's pull. What another worker
/// has committed for the same ticket is not used again.
inline constexpr Method<Commit, std::int64_t> commit{"commit"};
/// The server's part of a group, as bulk; replies how many updates it has seen.
inline constexpr Method<std::int64_t, std::int64_t> pull{"pull"};
/// A signal that asks for the run's end has come to the caller; its number.
inline constexpr Method<std::int64_t, Nothing> interrupt{"interrupt"};
/// A worker's account for the record, before it leaves.
inline constexpr Method<std::string, Nothing> account{"account"};
/// Between servers: to save with the first one, all at once, the state that comes as bulk; and to
/// leave, with an account for the record.
inline constexpr Method<Nothing, Nothing> save{"save"};
inline constexpr Method<Nothing, std::string> leave{"leave"};

}  // namespace trireme::data_parallel::async
