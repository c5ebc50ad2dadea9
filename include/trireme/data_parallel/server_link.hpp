// What a worker's link to its parameter servers is, whether workers keep step or not.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/data_parallel/server_staging.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::data_parallel {

/// Pushes gradients bucket by bucket as backward finishes them, each server its part, and counts.
class ServerLink : public parallel::DataParallel {
 public:
  /// What it works on, which outlives it; the servers are the ranks after place.workers of the
  /// started endpoint. The state is `served` and whole.
  struct Parts {
    const parallel::Stage& stage;
    const state::ModelState& state;
    ops::Ops& ops;
    comm::rpc::Endpoint& endpoint;
    Recorder& recorder;
    ServerPlace place;
  };

  device::Event reduce(const params::Range& elements, const Tensor& gradient,
                       device::Stream& stream) final;

  /// Bytes of gradients that were sent and of the model that came, and seconds in which this worker
  /// waited for servers.
  std::int64_t sent() const { return sent_; }
  std::int64_t received() const { return received_; }
  double seconds() const { return seconds_; }
  /// What follows counts from here.
  void reset_traffic() { sent_ = received_ = 0, seconds_ = 0; }

 protected:
  ServerLink(const Parts& parts, device::MemoryLedger& ledger);

  /// Sends the gradient of a part.
  virtual comm::rpc::Future<comm::rpc::Nothing> push(const ServerPart& part,
                                                     std::span<const std::byte> gradient) = 0;
  int rank_of(int server) const { return parts_.place.workers + server; }

  /// Counts the time from its construction to its end, beside the recorder's section.
  class Waiting {
   public:
    explicit Waiting(ServerLink& link)
        : section_(link.parts_.recorder, "wait for servers"), seconds_(link.seconds_) {}
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() {
      seconds_ += std::chrono::duration<double>(Recorder::Clock::now() - begin_).count();
    }

   private:
    Section section_;
    Recorder::Clock::time_point begin_ = Recorder::Clock::now();
    double& seconds_;
  };

  Parts parts_;
  std::vector<ServerPart> shards_;
  ServerStaging staging_;
  std::int64_t received_ = 0;

 private:
  /// The same in every step.
  struct Bucket {
    std::vector<ServerPart> parts;
    Push::Futures futures;
  };
  Bucket& bucket_of(const params::Range& elements);

  std::map<std::pair<std::int64_t, std::int64_t>, Bucket> buckets_;  // by begin and end
  std::int64_t sent_ = 0;
  double seconds_ = 0;
};

}  // namespace trireme::data_parallel
