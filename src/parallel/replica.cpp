#include "trireme/parallel/replica.hpp"

#include <algorithm>

#include "trireme/core/machine.hpp"
#include "trireme/device/cuda.hpp"
#include "trireme/state/update.hpp"

namespace trireme::parallel {

namespace {

StageOptions placed(const ReplicaOptions& options, comm::Grid& grid) {
  StageOptions stage = options.stage;
  stage.place = place_of(grid.shape(), grid.world().rank(), options.alone);
  TRIREME_ASSERT(!options.alone || stage.zero == 0, "ZeRO {} in a replica that is alone",
                 stage.zero);
  return stage;
}

}  // namespace

EngineGroups Replica::groups() {
  using comm::Axis;
  using comm::Direction;
  const bool alone = options_.alone;
  return {.tensor = grid_.group(Axis::tensor),
          .kv = grid_.group(comm::GroupKind::kv),
          .context = grid_.group(Axis::context),
          .data = alone ? grid_.group(Axis::context) : grid_.group(Axis::data),
          .shard = alone ? *self_ : grid_.shard_group(),
          .embedding = grid_.embedding_group(),
          .pipeline = grid_.group(Axis::pipeline),
          .activations = grid_.pipeline_channel(Direction::activations),
          .gradients = grid_.pipeline_channel(Direction::gradients),
          .narrow_gradients = narrow_gradients()};
}

Tensor Replica::narrow_gradients() const {
  if (narrow_gradients_.bytes() == 0) return {};
  return narrow_gradients_.view(DType::bf16, {static_cast<std::int64_t>(narrow_gradients_.bytes()) /
                                              static_cast<std::int64_t>(size_of(DType::bf16))});
}

Replica::Replica(const model::Transformer& model, const ReplicaOptions& options, comm::Grid& grid,
                 Recorder& recorder, device::MemoryLedger& ledger)
    : options_(options),
      grid_(grid),
      members_(options.alone ? grid.model_group() : grid.world()),
      recorder_(recorder),
      device_(ledger.device()),
      ops_(make_ops(ledger)),
      stage_(options.pipeline != nullptr ? Stage(model, placed(options, grid), *options.pipeline)
                                         : Stage(model, placed(options, grid))),
      state_(stage_.layout(), stage_.shards(), stage_.state_options(), ledger),
      optimizer_(options.optim, stage_.state_options().updates() ? stage_.shards().elements() : 0,
                 ledger, state_.options().offloaded(), {options.stochastic_rounding, options.seed}),
      offload_(state_.options().offloaded() ? std::make_unique<state::Offload>(
                                                  state_, options.threads, options.bucket_elements,
                                                  ledger, options.stochastic_rounding)
                                            : nullptr),
      narrow_gradients_(
          ledger, device::Use::communication,
          static_cast<std::size_t>(GradientSums::narrow_elements(stage_, options.bucket_elements)) *
              size_of(DType::bf16)),
      registrations_(register_state()),
      method_(make_method(ledger)),
      engine_(stage_, state_, *ops_, groups(), *method_, recorder, ledger, options_,
              offload_.get()) {
  if (!device_.is_host()) return;
  constexpr std::size_t megabyte = std::size_t{1} << 20, kernels = 64, of_thread = 16;
  require_address_space(
      (kernels + of_thread * static_cast<std::size_t>(options.threads)) * megabyte,
      "oneDNN and threads");
}

std::unique_ptr<ops::Ops> Replica::make_ops(device::MemoryLedger& ledger) {
  TRIREME_ASSERT(options_.threads >= 1, "a replica of {} threads", options_.threads);
  const bool reproducible = options_.stage.reproducible;
  std::unique_ptr<ops::Ops> own = options_.make_ops
                                      ? options_.make_ops(ledger, options_.threads, reproducible)
                                      : ops::make_cpu_ops(options_.threads, &ledger, reproducible);
  choosing_ = dynamic_cast<ops::AlgorithmChoices*>(own.get());
  if (!options_.trace) return own;
  auto traced = std::make_unique<ops::TracedOps>(std::move(own), device_, recorder_);
  traced_ = traced.get();
  return traced;
}

comm::Communicator& Replica::replicas() {
  if (options_.alone) return grid_.group(comm::Axis::context);
  return stage_.options().zero > 0 ? grid_.replica_group() : grid_.group(comm::Axis::data);
}

/// With the groups that move it in every step. A replica that only evaluates is made where a rank
/// may fail alone, so it must not communicate here.
std::vector<std::unique_ptr<comm::Registration>> Replica::register_state() {
  if (!stage_.options().train || stage_.options().served) return {};
  std::vector<std::unique_ptr<comm::Registration>> registrations;
  std::vector<comm::Communicator*> groups{&replicas()};
  if (state_.options().optimizer_sharded()) groups.push_back(&grid_.shard_group());
  for (comm::Communicator* group : groups) {
    for (const Tensor& memory : state_.communicated()) {
      registrations.push_back(group->register_memory(memory));
    }
    if (const Tensor narrow = narrow_gradients()) {
      registrations.push_back(group->register_memory(narrow));
    }
  }
  return registrations;
}

std::unique_ptr<DataParallel> Replica::make_method(device::MemoryLedger& ledger) {
  if (options_.make_method) return options_.make_method(stage_, state_, *ops_, ledger);
  return std::make_unique<AllReduce>(
      AllReduce::Parts{stage_, state_, optimizer_, offload_.get(), *ops_,
                       GradientSums(replicas(), narrow_gradients()), members_,
                       options_.stochastic_rounding},
      ledger);
}

void Replica::initialize() {
  if (stage_.options().served) return refresh();
  std::vector<params::FlatRange> ranges{{{0, stage_.layout().elements()}, 0}};
  if (state_.parameters_sharded()) ranges = stage_.shards().own_ranges();
  device::Device& device = state_.optimizer_device();
  if (device.is_host()) {
    params::initialize(stage_.layout(), options_.seed, ranges, state_.parameters());
    return refresh();
  }
  // The host makes the values, so that they are the same for every device.
  constexpr std::int64_t most = 16 << 20;
  std::vector<float> values;
  for (const params::FlatRange& range : ranges) {
    for (std::int64_t at = range.elements.begin; at < range.elements.end; at += most) {
      const params::Range part{at, std::min(at + most, range.elements.end)};
      values.resize(static_cast<std::size_t>(part.size()));
      params::initialize(stage_.layout(), options_.seed, {{part, 0}},
                         Tensor(values.data(), {part.size()}));
      const std::int64_t first = range.offset + at - range.elements.begin;
      device::write(device, state_.parameters().slice(0, first, first + part.size()),
                    values.data());
    }
  }
  refresh();
}

void Replica::refresh(std::int64_t updates) {
  if (stage_.options().served) return method_->fetch();
  if (!state_.has_masters()) return;
  rounded_for_ = updates;
  if (offload_) {
    offload_->refresh(optimizer_, updates);
  } else {
    for (const auto& range : state::update_ranges(state_, options_.stochastic_rounding)) {
      optimizer_.round(*ops_, range, updates);
    }
  }
  engine_.gather_updated();
}

void Replica::connect_stages() {
  std::vector<comm::StageLink> links;
  const int own = grid_.coordinate(comm::Axis::pipeline);
  for (const Program* program : {&stage_.program(), &stage_.forward_program()}) {
    for (const UnitAction& action : program->actions) {
      const bool send = action.kind == UnitAction::Kind::send;
      if (!send && action.kind != UnitAction::Kind::receive) continue;
      const auto direction =
          action.gradient ? comm::Direction::gradients : comm::Direction::activations;
      links.push_back({direction, send ? own : action.peer, send ? action.peer : own});
    }
  }
  grid_.connect_stages(std::move(links));
}

void Replica::settle_choices(bool documents) {
  if (choosing_ == nullptr) return;
  const Section section(recorder_, "settle choices");
  const StageOptions& stage = stage_.options();
  backward(blank_batches(stage.micro_batches, stage.sequences, stage_.model().config().sequence,
                         documents));
  skip();
  // The choices of the first replica, and in it of the first rank that made one, hold everywhere.
  const std::vector<std::byte> own = choosing_->choices();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(own.data());
  auto all = grid_.model_group().all_gather_bytes({bytes, own.size()});
  for (auto theirs = all.rbegin(); theirs != all.rend(); ++theirs) {
    grid_.group(comm::Axis::data).broadcast_bytes(*theirs, 0);
    if (theirs->empty()) continue;
    choosing_->use_choices({reinterpret_cast<const std::byte*>(theirs->data()), theirs->size()});
  }
  engine_.graphs().forget();
}

StepSums Replica::finish() {
  {
    const device::Range range("gradient norm");
    method_->start_norm(*ops_);
  }
  wait();
  const LossSum loss = engine_.step_sums();
  const Section section(recorder_, "sum loss and norm");
  return {loss, method_->finish_norm()};
}

void Replica::wait() {
  if (traced_ != nullptr) traced_->before_wait();
  if (!device_.is_host()) {
    const Section section(recorder_, "wait for the device");
    device::wait_for(device_);
  }
  if (traced_ != nullptr) traced_->after_wait();
}

void Replica::gradients_changed() {
  if (offload_) offload_->retake();
}

void Replica::update(double learning_rate, std::int64_t step, double gradient_scale) {
  const device::Range range("optimizer");
  rounded_for_ = step + 1;
  method_->update(learning_rate, step, gradient_scale);
  engine_.gather_updated();
}

}  // namespace trireme::parallel
