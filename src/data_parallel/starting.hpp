// Heartbeats for the time before a job's own watch begins.
#pragma once

#include <atomic>
#include <string>

#include "trireme/comm/rpc.hpp"
#include "trireme/comm/session.hpp"

namespace trireme::data_parallel {

/// The time in which all ranks still start together, and need each other: one that dies or is
/// stopped ends all others, on all nodes and whatever the launcher lets live. Rank 0 finds it
/// silent, and all find rank 0 so.
class Starting {
 public:
  /// Collective over the session. `heartbeat`: seconds of silence that mean death.
  Starting(comm::Session& session, double heartbeat);
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;
  /// Unless end() came before, the others find that this rank is silent.
  ~Starting();
  /// Once all ranks are watched otherwise, or leave together.
  void end();

 private:
  void lose(int rank, const std::string& why);

  comm::Session& session_;
  std::atomic<bool> over_ = false;
  comm::rpc::Endpoint beats_;
};

}  // namespace trireme::data_parallel
