#include <algorithm>
#include <cstdio>
#include <numeric>

#include "trireme/comm/agree.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/sample.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

/// One sequence that grows: keys and values of what was seen are kept, so that each new token costs
/// one row.
class Continuation {
 public:
  Continuation(const model::Transformer& model, const state::ModelState& state, ops::Ops& ops,
               device::MemoryLedger& ledger)
      : model_(model),
        state_(state),
        ops_(ops),
        capacity_(model.config().sequence),
        layout_(model, capacity_),
        stash_(ledger, device::Use::stash, layout_.stash_bytes),
        workspace_(ledger, device::Use::workspace, layout_.workspace_bytes),
        positions_(static_cast<std::size_t>(capacity_)),
        logits_(static_cast<std::size_t>(model.config().vocabulary)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    const std::int64_t width = model.config().kv_heads * model.config().head_size();
    const std::size_t bytes = static_cast<std::size_t>(capacity_ * width) * sizeof(float);
    const auto blocks = static_cast<std::size_t>(model.config().layers);
    cached_ = device::Buffer(ledger, device::Use::workspace, 2 * blocks * bytes);
    for (std::size_t i = 0; i < blocks; ++i) {
      caches_.push_back(
          {.keys = cached_.view(DType::f32, {capacity_, width}, 2 * i * bytes),
           .values = cached_.view(DType::f32, {capacity_, width}, (2 * i + 1) * bytes),
           .positions = Tensor(positions_.data(), {1, capacity_})});
    }
  }

  /// Takes in tokens and returns the logits [V] after the last. A full window begins anew with its
  /// later half.
  std::span<const float> feed(const std::vector<std::int32_t>& tokens) {
    for (std::int32_t token : tokens) seen_.push_back(token);
    auto fresh = static_cast<std::int64_t>(tokens.size());
    if (length_ + fresh > capacity_) {
      const std::int64_t keep = std::min<std::int64_t>(static_cast<std::int64_t>(seen_.size()),
                                                       std::max<std::int64_t>(1, capacity_ / 2));
      seen_.erase(seen_.begin(), seen_.end() - keep);
      length_ = 0;
      fresh = keep;
    }
    run(std::vector<std::int32_t>(seen_.end() - fresh, seen_.end()));
    return logits_;
  }

 private:
  void run(std::vector<std::int32_t> tokens) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const model::Microbatch batch{.sequences = 1,
                                  .length = rows,
                                  .inputs = Tensor(tokens.data(), {rows}),
                                  .positions = Tensor(positions_.data() + length_, {1, rows})};
    const std::vector<Tensor> no_gradients;
    const std::size_t delta = 2 * layout_.gradient_bytes;
    Tensor x;
    for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
      const bool block = unit > 0 && unit + 1 < model_.units().size();
      if (block) caches_[unit - 1].length = length_;
      const model::UnitContext context{.ops = ops_,
                                       .batch = batch,
                                       .values = state_.values(),
                                       .gradients = no_gradients,
                                       .mode = model::Mode::evaluate,
                                       .cache = block ? &caches_[unit - 1] : nullptr};
      const model::UnitMemory memory({{{&stash_, layout_.stash[unit]},
                                       {&workspace_, delta},
                                       {&workspace_, delta + layout_.delta_bytes}}});
      if (unit + 1 == model_.units().size()) {
        const Tensor logits(logits_.data(), {1, model_.config().vocabulary});
        model_.head().logits(context, logits, x.slice(0, rows - 1, rows), memory);
        break;
      }
      const Tensor y =
          stash_.view(DType::f32, {rows, model_.config().width}, layout_.outputs[unit]);
      model_.units()[unit]->forward(context, y, x, memory);
      x = y;
    }
    length_ += rows;
  }

  const model::Transformer& model_;
  const state::ModelState& state_;
  ops::Ops& ops_;
  std::int64_t capacity_, length_ = 0;  // tokens that fit, tokens in the caches
  model::StageLayout layout_;
  device::Arena stash_, workspace_;
  device::Buffer cached_;
  std::vector<model::KeyValueCache> caches_;  // by block
  std::vector<std::int32_t> positions_, seen_;
  std::vector<float> logits_;
};

}  // namespace

std::string generate(comm::Session& session, const RunConfig& config,
                     const GenerateOptions& options) {
  device::MemoryLedger ledger;
  comm::Grid grid(session, comm::make_grid_shape(session.size(), {}), ledger);
  std::string text;
  comm::agree(grid.world(), [&] {
    if (session.rank() != 0) return;
    const checkpoint::Reader reader(find_checkpoint(options.checkpoint));
    const std::string path = config.data.path.empty()
                                 ? reader.state().config.at("data").at("path").get<std::string>()
                                 : config.data.path;
    const data::Dataset dataset = data::Dataset::open(path);
    const auto tokenizer = data::load_tokenizer(dataset);
    const model::Transformer model(model_of(reader.state()));
    state::ModelState state(model, false, ledger);
    load_parameters(reader, model.table(), state.parameters());
    const auto ops = ops::make_cpu_ops(threads_of_rank(config.parallel, session), &ledger);
    Continuation continuation(model, state, *ops, ledger);

    std::vector<std::int32_t> tokens = tokenizer->encode(options.prompt);
    const auto end_of_document = dataset.manifest().end_of_document;
    if (tokens.empty()) tokens.push_back(static_cast<std::int32_t>(end_of_document.value_or(0)));
    text = options.prompt;
    std::fwrite(text.data(), 1, text.size(), stdout);
    const RandomKey key{static_cast<std::uint64_t>(options.seed), Purpose::generation, 0};
    std::vector<std::int32_t> made;
    std::vector<std::int32_t> next = tokens;
    for (std::int64_t i = 0; i < options.tokens; ++i) {
      const auto logits = continuation.feed(next);
      // Ids that the tokenizer does not know (a model's vocabulary may be rounded up) are never
      // drawn.
      const auto known =
          std::min(logits.size(), static_cast<std::size_t>(dataset.manifest().vocabulary));
      const std::int64_t id =
          sample_token(logits.first(known), options.temperature, options.top_k, options.top_p,
                       uniform(key, static_cast<std::uint64_t>(i)));
      if (end_of_document && id == *end_of_document) break;
      made.push_back(static_cast<std::int32_t>(id));
      const std::string sofar = tokenizer->decode(made);
      const std::size_t shown = text.size() - options.prompt.size();
      if (sofar.size() > shown) {
        std::fwrite(sofar.data() + shown, 1, sofar.size() - shown, stdout);
        std::fflush(stdout);
        text = options.prompt + sofar;
      }
      next = {static_cast<std::int32_t>(id)};
    }
    std::fputc('\n', stdout);
    std::fflush(stdout);
  });
  return text;
}

}  // namespace trireme::train
