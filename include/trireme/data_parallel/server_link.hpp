// A worker's side of training with parameter servers, whether workers keep step or not, and the
// host memory between them: messages are of host memory, and the worker may compute on a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/data_parallel/server_messages.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/stage.hpp"

namespace trireme::data_parallel {

/// Buffers for the gradients that a worker sends and the model that it receives. A worker on the
/// host copies nothing but gradients that it rounds to a narrower type. On a device both pass
/// through the same staging memory: all gradients of a step are sent before its new model arrives.
/// Copies of gradients overlap with computation, on a queue of their own. The host never waits for
/// them.
class ServerStaging {
 public:
  /// `state`, which is served and whole, `ops` and `ledger` outlive it; `gradients` is the type
  /// that is sent, f32 or bf16.
  ServerStaging(const state::ModelState& state, ops::Ops& ops, DType gradients,
                device::MemoryLedger& ledger);
  ServerStaging(const ServerStaging&) = delete;
  ServerStaging& operator=(const ServerStaging&) = delete;
  /// Waits for copies.
  ~ServerStaging();

  /// Begins to bring the gradients of `elements` of the flat buffer, as computation so far leaves
  /// them, to where they are sent from. They are there once the fence is reached; null: now.
  std::shared_ptr<device::Fence> take(const params::Range& elements);
  /// Where they are sent from: [elements] of the type that is sent.
  Tensor outgoing(const params::Range& elements) const;

  /// Before parts of a model are received: those of the last one have been read.
  void begin_receiving();
  /// Where the part is received, [part.elements] of the type that units read.
  Tensor incoming(const ServerPart& part) const;
  /// The part has come: computation that is queued from now on reads it.
  void deliver(const ServerPart& part);

  /// Bytes held for communication, on the device and in staging memory, by a worker that computes
  /// on the host or not.
  static std::int64_t bytes(const state::StateOptions& options, const params::Layout& layout,
                            DType gradients, bool host);

 private:
  bool narrow() const { return gradients_ != DType::f32; }

  const state::ModelState& state_;
  ops::Ops& ops_;
  device::Device& device_;
  DType gradients_;
  device::Buffer narrow_buffer_, staging_buffer_;
  Tensor narrow_;               // [layout.elements], gradients rounded, on the device
  Tensor outgoing_, incoming_;  // [layout.elements], in host memory
  std::shared_ptr<device::Fence> delivered_;
  std::unique_ptr<device::Queue> copies_;  // absent: the host's. Ends first: it waits for its work
};

/// The gradients of one bucket on their way to servers, one call for each part.
class Push final : public device::Operation {
 public:
  using Futures = std::vector<comm::rpc::Future<comm::rpc::Nothing>>;
  /// `send` makes the calls once `ready` is reached (null: at once) and puts them into `futures`,
  /// which outlives this and is empty again at its end.
  Push(std::shared_ptr<device::Fence> ready, Futures& futures, std::function<void()> send)
      : ready_(std::move(ready)), futures_(futures), send_(std::move(send)) {}
  void start() override {}
  bool test() override;

 private:
  std::shared_ptr<device::Fence> ready_;
  Futures& futures_;
  std::function<void()> send_;  // empty: they are made
};

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

  /// The reply of every server to a call, in their order.
  template <class Request, class Reply>
  std::vector<comm::rpc::Future<Reply>> call_all(const messages::Method<Request, Reply>& method,
                                                 const std::type_identity_t<Request>& request,
                                                 std::span<const std::byte> bulk = {}) {
    std::vector<comm::rpc::Future<Reply>> futures;
    for (int s = 0; s < parts_.place.servers; ++s) {
      futures.push_back(parts_.endpoint.call(method, rank_of(s), request, bulk));
    }
    return futures;
  }
  int rank_of(int server) const { return parts_.place.workers + server; }

  using Pulled = std::vector<comm::rpc::Future<std::int64_t>>;  // by part
  /// Asks for all parts of the model.
  Pulled pull();
  /// Waits for what pull() asked for; returns its bytes.
  std::int64_t take(const Pulled& pulled);

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
  std::int64_t received_ = 0;
  std::int64_t number_ = 0;             // the step of this start, skipped ones too; or the ticket
  std::vector<std::int64_t> versions_;  // by server, of the model that was taken; the oldest part's

 private:
  /// The same in every step.
  struct Bucket {
    std::vector<ServerPart> parts;
    Push::Futures futures;
  };
  Bucket& bucket_of(const params::Range& elements);

  std::vector<ServerPart> shards_;
  ServerStaging staging_;
  std::map<std::pair<std::int64_t, std::int64_t>, Bucket> buckets_;  // by begin and end
  std::int64_t sent_ = 0;
  double seconds_ = 0;
};

/// In synchronous steps. The worker's own gradients stay what it contributed.
class ServedWorker final : public ServerLink {
 public:
  ServedWorker(const Parts& parts, device::MemoryLedger& ledger) : ServerLink(parts, ledger) {}

  void fetch() override;
  void start_norm(ops::Ops& /*ops*/) override {}
  /// Waits for all workers' gradients at all servers.
  double finish_norm() override;
  void update(double learning_rate, std::int64_t step, double gradient_scale) override;
  void skip() override { settle({.step = number_}); }

  /// A signal that a server had caught when it answered last; 0: none.
  int signal() const { return signal_; }
  /// Runs the job `name` on `text` at all servers. Returns the first server's reply, or throws the
  /// error of the first that failed. One worker calls, between steps.
  std::string work(const std::string& name, const std::string& text);
  /// Ends all servers' service; see messages::end. One worker calls, as its last call.
  void end(const std::string& text);

 private:
  void settle(const messages::Settlement& settlement);

  int signal_ = 0;
};

/// Asynchronous: pulls the model before each ticket and commits the ticket's gradients. Its grid is
/// this rank alone, so norms and losses are those of one worker.
class AsyncWorker final : public ServerLink {
 public:
  AsyncWorker(const Parts& parts, device::MemoryLedger& ledger);

  /// What the next gradients are for.
  void begin(std::int64_t ticket) { number_ = ticket; }
  /// Pulls the newest model.
  void fetch() override;
  void start_norm(ops::Ops& ops) override { norm_.start(ops); }
  double finish_norm() override { return norm_.finish(*alone_); }
  /// Commits, whatever `step`, which each server counts; returns when all have updated.
  void update(double learning_rate, std::int64_t /*step*/, double gradient_scale) override {
    commit({.learning_rate = learning_rate, .gradient_scale = gradient_scale});
  }
  /// Has the servers drop the gradients.
  void skip() override { commit({.use = 0}); }

 private:
  void commit(messages::Commit commit);

  std::unique_ptr<comm::Communicator> alone_;
  state::GradientNorm norm_;
};

}  // namespace trireme::data_parallel
