// A worker's side of synchronous steps with parameter servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/data_parallel/server_link.hpp"
#include "trireme/data_parallel/server_messages.hpp"

namespace trireme::data_parallel {

/// Pushes gradients as backward finishes them and reads the model back where units read it. Its own
/// gradients stay what it contributed.
class ServedWorker final : public ServerLink {
 public:
  ServedWorker(const Parts& parts, device::MemoryLedger& ledger);

  void fetch() override;
  void start_norm(ops::Ops& ops) override;
  /// Waits for all workers' gradients at all servers.
  double finish_norm() override;
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;
  void skip() override;

  /// A signal that a server had caught when it answered last; 0: none.
  int signal() const { return signal_; }
  /// Has all servers do the work of that name on `text`, one after another where they need not do
  /// it together; returns what the first one replies. Throws the error of the first that failed.
  /// One worker calls, between steps.
  std::string work(const std::string& name, const std::string& text);
  /// Ends all servers' service; see messages::end. One worker calls, as its last call.
  void end(const std::string& text);

 private:
  using Pulled = std::vector<comm::rpc::Future<comm::rpc::Nothing>>;  // by part
  comm::rpc::Future<comm::rpc::Nothing> push(const ServerPart& part,
                                             std::span<const std::byte> gradient) override;
  void settle(const messages::Settlement& settlement);
  /// Asks for all parts of the model after `step` steps.
  Pulled pull(std::int64_t step);
  /// Waits for what pull() asked for; returns its bytes.
  std::int64_t take(const Pulled& pulled);

  std::int64_t step_ = 0;  // of this start, skipped ones too
  int signal_ = 0;
};

}  // namespace trireme::data_parallel
