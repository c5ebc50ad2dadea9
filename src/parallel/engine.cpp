#include "trireme/parallel/engine.hpp"

#include <functional>

namespace trireme::parallel {

namespace {

/// Notes the time at which the stream reaches it: what went before has finished.
class Mark final : public device::Operation {
 public:
  explicit Mark(std::function<void()> reached) : reached_(std::move(reached)) {}
  void start() override { reached_(); }
  bool test() override { return true; }

 private:
  std::function<void()> reached_;
};

}  // namespace

Engine::Engine(const model::Transformer& model, const state::ModelState& state, ops::Ops& ops,
               comm::Communicator& data_group, Recorder& recorder, device::MemoryLedger& ledger,
               const EngineOptions& options)
    : model_(model),
      state_(state),
      ops_(ops),
      group_(data_group),
      recorder_(recorder),
      options_(options),
      layout_(model, options.max_rows),
      stash_(ledger, device::Use::stash, layout_.stash_bytes),
      workspace_(ledger, device::Use::workspace, layout_.workspace_bytes) {
  const std::size_t delta = 2 * layout_.gradient_bytes;
  for (std::size_t stash : layout_.stash) {
    memory_.emplace_back(std::array<model::UnitMemory::Place, model::area_count>{
        {{&stash_, stash}, {&workspace_, delta}, {&workspace_, delta + layout_.delta_bytes}}});
  }
  if (!options.train) return;
  buckets_ = state::plan_buckets(model.table(), static_cast<int>(model.units().size()),
                                 options.bucket_elements);
  if (group_.size() > 1 && options.overlap) {
    progress_ = std::make_unique<comm::Progress>(std::vector<device::Stream*>{&stream_});
  }
}

Engine::~Engine() = default;

model::UnitContext Engine::context(const HostMicrobatch& batch, model::Mode mode,
                                   double denominator, double* loss) {
  return {.ops = ops_,
          .batch = batch.view(),
          .values = state_.values(),
          .gradients = state_.gradient_views(),
          .mode = mode,
          .seed = options_.seed,
          .denominator = denominator,
          .loss = loss};
}

Tensor Engine::output(int unit, std::int64_t rows) {
  return stash_.view(DType::f32, {rows, model_.config().width},
                     layout_.outputs[static_cast<std::size_t>(unit)]);
}

void Engine::forward(const model::UnitContext& context, int units) {
  const std::int64_t rows = context.batch.tokens();
  const int last = static_cast<int>(model_.units().size()) - 1;
  for (int unit = 0; unit < units; ++unit) {
    const Tensor x = unit > 0 ? output(unit - 1, rows) : Tensor();
    const Tensor y = unit < last ? output(unit, rows) : Tensor();
    const auto index = static_cast<std::size_t>(unit);
    model_.units()[index]->forward(context, y, x, memory_[index]);
  }
}

void Engine::backward(const model::UnitContext& context, bool last) {
  const Section section(recorder_, "backward");
  const std::int64_t rows = context.batch.tokens();
  Tensor dy;
  for (int unit = static_cast<int>(model_.units().size()) - 1; unit >= 0; --unit) {
    const auto index = static_cast<std::size_t>(unit);
    const Tensor x = unit > 0 ? output(unit - 1, rows) : Tensor();
    // The two passing gradients take turns.
    const std::size_t place = static_cast<std::size_t>(unit % 2) * layout_.gradient_bytes;
    const Tensor dx =
        unit > 0 ? workspace_.view(DType::f32, {rows, model_.config().width}, place) : Tensor();
    model_.units()[index]->backward_input(context, dx, dy, x, memory_[index]);
    model_.units()[index]->backward_weight(context, dy, x, memory_[index]);
    if (last) reduce_after(unit);
    dy = dx;
  }
}

void Engine::reduce_after(int unit) {
  bool queued = false;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].after_unit >= unit) {
    const state::Bucket& bucket = buckets_[next_bucket_++];
    const auto begin = std::make_shared<Recorder::Clock::time_point>();
    stream_.enqueue(std::make_unique<Mark>([begin] { *begin = Recorder::Clock::now(); }));
    group_.all_reduce(state_.gradients().slice(0, bucket.begin, bucket.end), comm::Reduction::sum,
                      stream_);
    pending_.push_back(stream_.enqueue(std::make_unique<Mark>([this, begin] {
      recorder_.add("reduce gradients (overlapped)", 1, *begin, Recorder::Clock::now());
    })));
    recorder_.count("bytes reduced", static_cast<double>((bucket.end - bucket.begin) * 4));
    queued = true;
  }
  if (queued && progress_) progress_->wake();
}

LossSum Engine::step(const std::vector<HostMicrobatch>& batches) {
  LossSum sum;
  for (const HostMicrobatch& batch : batches) sum.weight += batch.weight();
  sum.weight = group_.all_reduce(sum.weight, comm::Reduction::sum);
  {
    const Section section(recorder_, "zero gradients");
    ops_.fill(state_.gradients(), 0);
  }
  next_bucket_ = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto call = context(batches[i], model::Mode::train, sum.weight, &sum.loss);
    {
      const Section section(recorder_, "forward");
      forward(call, static_cast<int>(model_.units().size()));
    }
    backward(call, i + 1 == batches.size());
  }
  const Section section(recorder_, "wait for gradients");
  for (const device::Event& event : pending_) event.wait();
  pending_.clear();
  sum.loss = group_.all_reduce(sum.loss, comm::Reduction::sum);
  return sum;
}

LossSum Engine::evaluate(const HostMicrobatch& batch) {
  LossSum sum;
  sum.weight = batch.weight();
  forward(context(batch, model::Mode::evaluate, 1.0, &sum.loss),
          static_cast<int>(model_.units().size()));
  return sum;
}

void Engine::logits(const HostMicrobatch& batch, const Tensor& logits) {
  const int head = static_cast<int>(model_.units().size()) - 1;
  const auto call = context(batch, model::Mode::evaluate, 1.0, nullptr);
  forward(call, head);
  model_.head().logits(call, logits, output(head - 1, batch.view().tokens()), memory_.back());
}

}  // namespace trireme::parallel
