// A worker's side of synchronous steps with parameter servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/parallel/data_parallel.hpp"
#include "trireme/parallel/server_messages.hpp"
#include "trireme/parallel/server_shards.hpp"
#include "trireme/parallel/server_staging.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::parallel {

/// Pushes gradients as backward finishes them and reads the model back where units read it. Adds
/// up nothing: its own gradients stay what it contributed.
class ServedWorker final : public DataParallel {
 public:
  /// What it works on, which outlives it; the servers are the ranks after place.workers of the
  /// started endpoint. The state is `served` and whole.
  struct Parts {
    const Stage& stage;
    const state::ModelState& state;
    ops::Ops& ops;
    comm::rpc::Endpoint& endpoint;
    Recorder& recorder;
    ServerPlace place;
  };
  ServedWorker(const Parts& parts, device::MemoryLedger& ledger);

  void fetch() override;
  device::Event reduce(const params::Range& elements, device::Stream& stream) override;
  void start_norm(ops::Ops& ops) override;
  /// Waits for all workers' gradients at all servers.
  double finish_norm() override;
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;
  void skip() override;

  /// A signal that a server had caught when it answered last; 0: none.
  int signal() const { return signal_; }
  /// What follows counts from here.
  void reset_traffic() { sent_ = received_ = 0, seconds_ = 0; }
  /// Bytes of gradients that were sent in steps and of the model that came after them, and seconds
  /// in which this worker waited for servers.
  std::int64_t sent() const { return sent_; }
  std::int64_t received() const { return received_; }
  double seconds() const { return seconds_; }
  /// Has all servers do the work of that name on `text`, one after another where they need not do
  /// it together; returns what the first one replies. Throws Error in the words of the first that
  /// failed. One worker calls, between steps.
  std::string work(const std::string& name, const std::string& text);
  /// Ends all servers' service; see messages::end. One worker calls, as its last call.
  void end(const std::string& text);

 private:
  using Pulled = std::vector<comm::rpc::Future<comm::rpc::Nothing>>;  // by part
  void settle(const messages::Settlement& settlement);
  /// Asks for all parts of the model after `step` steps.
  Pulled pull(std::int64_t step);
  /// Waits for what pull() asked for; returns its bytes.
  std::int64_t take(const Pulled& pulled);

  Parts parts_;
  std::vector<ServerPart> shards_;
  ServerStaging staging_;
  std::int64_t step_ = 0;  // of this start, skipped ones too
  std::int64_t sent_ = 0, received_ = 0;
  double seconds_ = 0;
  int signal_ = 0;
};

}  // namespace trireme::parallel
