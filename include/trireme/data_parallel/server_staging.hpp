// Host memory between a worker and its parameter servers: messages are of host memory, and the
// worker may compute on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/rpc.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/state/model_state.hpp"

namespace trireme::data_parallel {

/// What a worker sends of its gradients and receives of the model. Where it computes on the host
/// no copy is made, but for gradients of a narrower type. Else both pass through the
/// same staging memory: all gradients of a step have been sent before its new model comes. Copies
/// of gradients go on beside computation, on a queue of their own; the host waits for none of them.
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

}  // namespace trireme::data_parallel
