#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/checkpoint/tokenizer.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/model/attention.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/sample.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

/// One sequence that grows: keys and values of what was seen are kept, so that each new token costs
/// one row. Collective over the ranks of a replica.
class Continuation {
 public:
  Continuation(parallel::Replica& replica, device::MemoryLedger& ledger)
      : replica_(replica),
        capacity_(replica.stage().model().config().sequence),
        caches_(replica.stage().model().units().size()),
        positions_(static_cast<std::size_t>(capacity_)),
        logits_(static_cast<std::size_t>(replica.stage().model().config().vocabulary)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    const parallel::Stage& stage = replica.stage();
    const std::vector<std::int64_t> widths =
        model::Attention::key_widths(stage.model().config(), stage.shares().tiles);
    const std::int64_t width = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    std::vector<std::size_t> blocks;
    for (int unit = 1; unit < stage.last_unit(); ++unit) {
      if (stage.layout().has_unit(unit)) blocks.push_back(static_cast<std::size_t>(unit));
    }
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(capacity_ * elements) * sizeof(float);
    };
    cached_ = device::Buffer(ledger, device::Use::workspace, 2 * blocks.size() * bytes(width));
    std::size_t offset = 0;
    for (const std::size_t unit : blocks) {
      caches_[unit].positions = Tensor(positions_.data(), {1, capacity_});
      for (const std::int64_t own : widths) {
        for (auto* list : {&caches_[unit].keys, &caches_[unit].values}) {
          list->push_back(cached_.view(DType::f32, {capacity_, own}, offset));
          offset += bytes(own);
        }
      }
    }
  }

  /// Takes in tokens and returns the logits [V] after the last, on the last stage. A full window
  /// begins anew with its later half.
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
    std::vector<std::int32_t> taken(seen_.end() - fresh, seen_.end());
    const model::Microbatch batch{.sequences = 1,
                                  .length = fresh,
                                  .inputs = Tensor(taken.data(), {fresh}),
                                  .positions = Tensor(positions_.data() + length_, {1, fresh})};
    for (model::KeyValueCache& cache : caches_) cache.length = length_;
    const Tensor logits(logits_.data(), {1, static_cast<std::int64_t>(logits_.size())});
    replica_.engine().extend(batch, caches_, logits);
    length_ += fresh;
    return logits_;
  }

 private:
  parallel::Replica& replica_;
  std::int64_t capacity_, length_ = 0;  // tokens that fit, tokens in the caches
  device::Buffer cached_;
  std::vector<model::KeyValueCache> caches_;  // by unit
  std::vector<std::int32_t> positions_, seen_;
  std::vector<float> logits_;
};

}  // namespace

std::string generate(comm::Session& session, const RunConfig& config,
                     const GenerateOptions& options) {
  device::MemoryLedger ledger;
  Recorder recorder;
  const GridPlan plan = plan_grid(config, session);
  comm::Grid grid(session, plan.shape, ledger, plan.shard);
  comm::Watchdog watchdog(session, config.train.watchdog);
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<model::Transformer> model;
  std::unique_ptr<parallel::Replica> replica;
  std::unique_ptr<Continuation> continuation;
  data::Manifest manifest;
  const std::string folder = comm::of_rank_zero(
      grid.world(), [&] { return find_checkpoint(options.checkpoint).string(); });
  auto loading = std::make_optional<comm::Watchdog::Pause>(watchdog);
  comm::agree(grid.world(), [&] {
    const checkpoint::Reader reader(folder);
    const auto kept = checkpoint::kept_tokenizer(reader);
    if (kept && config.data.path.empty()) {
      manifest = *kept;
      tokenizer = data::load_tokenizer(manifest, reader.folder());
    } else {
      const data::Dataset dataset = data::Dataset::open(dataset_of(config, reader.state()));
      manifest = dataset.manifest();
      tokenizer = data::load_tokenizer(dataset);
    }
    model = std::make_unique<model::Transformer>(model_of(reader));
    parallel::StageOptions stage = forward_options(config, 1);
    stage.sequence_parallel = false;  // one row at a time has nothing to share out
    replica = std::make_unique<parallel::Replica>(
        *model,
        parallel::ReplicaOptions{.stage = stage,
                                 .threads = threads_of_rank(config.parallel, session)},
        grid, recorder, ledger);
    const state::ModelState& state = replica->state();
    checkpoint::load_pieces(reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
    continuation = std::make_unique<Continuation>(*replica, ledger);
  });
  loading.reset();
  const bool speaks = session.rank() == 0;
  const auto show = [&](std::string_view text) {
    if (!speaks) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  std::vector<std::int32_t> next = tokenizer->encode(options.prompt);
  if (next.empty()) next.push_back(static_cast<std::int32_t>(manifest.end_of_document.value_or(0)));
  std::string text = options.prompt;
  show(text);
  const RandomKey key{static_cast<std::uint64_t>(options.seed), Purpose::generation, 0};
  const bool draws = replica->stage().holds_last_unit();
  std::vector<std::int32_t> made;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    watchdog.beat("generate", i);
    const auto logits = continuation->feed(next);
    std::int64_t id = 0;
    if (draws) {
      // Ids that the tokenizer does not know (a model's vocabulary may be rounded up) are never
      // drawn.
      const auto known = std::min(logits.size(), static_cast<std::size_t>(manifest.vocabulary));
      id = sample_token(logits.first(known), options.temperature, options.top_k, options.top_p,
                        uniform(key, static_cast<std::uint64_t>(i)));
    }
    id = grid.group(comm::Axis::pipeline).all_reduce(id, comm::Reduction::sum);
    if (manifest.end_of_document && id == *manifest.end_of_document) break;
    made.push_back(static_cast<std::int32_t>(id));
    const std::string sofar = tokenizer->decode(made);
    const std::size_t shown = text.size() - options.prompt.size();
    if (sofar.size() > shown) {
      show(std::string_view(sofar).substr(shown));
      text = options.prompt + sofar;
    }
    next = {static_cast<std::int32_t>(id)};
  }
  show("\n");
  return speaks ? text : std::string();
}

}  // namespace trireme::train
