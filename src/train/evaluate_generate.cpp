// Evaluation and generation: the model of a checkpoint, forward alone. Long because they share how
// it is loaded.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/model/block.hpp"
#include "trireme/train/checkpointer.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

void check_vocabulary(const std::string& path, const data::Manifest& manifest,
                      const model::ModelConfig& model) {
  if (manifest.vocabulary <= model.vocabulary) return;
  throw Error(
      "data.path = {}: its {} token ids do not fit the model's vocabulary of {}; use the "
      "dataset of the run",
      path, manifest.vocabulary, model.vocabulary);
}

/// A checkpoint's model on a grid of all ranks. The watchdog watches once it is loaded.
class LoadedModel {
 public:
  LoadedModel(comm::Session& session, const RunConfig& config)
      : computes(config.device, session),
        ledger(computes.device()),
        plan(plan_grid(without_servers(config), session, computes.device().is_host())),
        grid(session, plan.shape, ledger, grid_options(config)),
        watchdog(session, config.train.watchdog),
        progress(session.rank() == 0 ? std::make_unique<report::ProgressLine>(stderr) : nullptr),
        loading_(watchdog),
        threads_(threads_of_rank(config.parallel, session)) {}

  /// Opens the checkpoint that `path` names; then `make` calls make_replica. Windows have
  /// `sequence` tokens (0: the checkpoint's). Throws AgreedError.
  template <class Make>
  void load(const std::filesystem::path& path, std::int64_t sequence, const Make& make) {
    const std::string folder =
        comm::of_rank_zero(grid.world(), [&] { return find_checkpoint(path).string(); });
    comm::agree(grid.world(), [&] {
      reader = std::make_unique<checkpoint::Reader>(folder);
      LoadProgress loading(progress.get());
      loading.follow(*reader);
      const model::ModelConfig trained = model_of(*reader);
      model = std::make_unique<model::Transformer>(with_sequence(trained, sequence));
      warn(sequence_warning(trained, sequence));
      make();
      reader->report_reads({});
    });
    loading_.reset();
  }
  void make_replica(parallel::StageOptions stage) {
    const DType trained = compute_type_of(reader->state());
    stage.compute = computes.computes_in(trained) ? trained : DType::f32;
    if (stage.compute != trained) {
      warn(fmt::format(
          "the checkpoint was trained in {}, which {} does not compute in; fp32 is used",
          name_of(trained), computes.name()));
    }
    stage.products_on_gpu = !computes.on_host();
    parallel::ReplicaOptions options;
    options.stage = stage;
    options.threads = threads_;
    options.make_ops = computes.make_ops();
    replica = std::make_unique<parallel::Replica>(*model, options, grid, recorder, ledger);
    const state::ModelState& state = replica->state();
    checkpoint::load_pieces(*reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
  }

  const ComputeDevice computes;
  device::MemoryLedger ledger;
  const GridPlan plan;
  comm::Grid grid;
  comm::Watchdog watchdog;
  std::unique_ptr<checkpoint::Reader> reader;
  std::unique_ptr<model::Transformer> model;
  Recorder recorder;
  std::unique_ptr<parallel::Replica> replica;
  const std::unique_ptr<report::ProgressLine> progress;  // rank 0's

 private:
  void warn(const std::string& warning) {
    if (!warning.empty() && grid.world().rank() == 0) {
      fmt::print(stderr, "trireme: warning: {}\n", warning);
    }
  }

  std::optional<comm::Watchdog::Pause> loading_;
  int threads_;
};

/// One sequence that grows: keys and values of what was seen are kept, so that each new token costs
/// one row. Collective over the ranks of a replica.
class Continuation {
 public:
  Continuation(parallel::Replica& replica, device::MemoryLedger& ledger)
      : replica_(replica),
        capacity_(replica.stage().model().config().sequence),
        caches_(replica.stage().model().units().size()),
        device_(ledger.device()),
        logits_(static_cast<std::size_t>(replica.stage().model().config().vocabulary)) {
    const auto buffer = [&](std::size_t elements, std::size_t size) {
      return device::Buffer(ledger, device::Use::batch, elements * size);
    };
    const auto capacity = static_cast<std::size_t>(capacity_);
    tokens_ = buffer(capacity, sizeof(std::int32_t));
    position_buffer_ = buffer(capacity, sizeof(std::int32_t));
    logits_buffer_ = buffer(logits_.size(), sizeof(float));
    positions_ = position_buffer_.view(DType::i32, {capacity_});
    std::vector<std::int32_t> positions(capacity);
    std::iota(positions.begin(), positions.end(), 0);
    device::write(device_, positions_, positions.data());
    const parallel::Stage& stage = replica.stage();
    const std::vector<std::int64_t> widths =
        model::Attention::key_widths(stage.model().config(), stage.shares().tiles);
    const DType type = stage.shares().compute;
    const std::int64_t width = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    std::vector<std::size_t> blocks;
    for (int unit = 1; unit < stage.last_unit(); ++unit) {
      if (stage.layout().has_unit(unit)) blocks.push_back(static_cast<std::size_t>(unit));
    }
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(capacity_ * elements) * size_of(type);
    };
    cached_ = device::Buffer(ledger, device::Use::workspace, 2 * blocks.size() * bytes(width));
    std::size_t offset = 0;
    for (const std::size_t unit : blocks) {
      caches_[unit].positions = positions_.reshape({1, capacity_});
      for (const std::int64_t own : widths) {
        for (auto* list : {&caches_[unit].keys, &caches_[unit].values}) {
          list->push_back(cached_.view(type, {capacity_, own}, offset));
          offset += bytes(own);
        }
      }
    }
  }

  /// Takes in tokens and returns the logits [V] after the last, on the last stage. A full window
  /// is replaced by its later half.
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
    const std::vector<std::int32_t> taken(seen_.end() - fresh, seen_.end());
    const model::Microbatch batch{
        .sequences = 1,
        .length = fresh,
        .inputs = tokens_.view(DType::i32, {fresh}),
        .positions = positions_.slice(0, length_, length_ + fresh).reshape({1, fresh})};
    device::write(device_, batch.inputs, taken.data());
    for (model::KeyValueCache& cache : caches_) cache.length = length_;
    const Tensor logits =
        logits_buffer_.view(DType::f32, {1, static_cast<std::int64_t>(logits_.size())});
    replica_.engine().extend(batch, caches_, logits);
    device::read(device_, logits_.data(), logits);
    length_ += fresh;
    return logits_;
  }

 private:
  parallel::Replica& replica_;
  std::int64_t capacity_, length_ = 0;  // tokens that fit, tokens in the caches
  device::Buffer cached_, tokens_, position_buffer_, logits_buffer_;
  std::vector<model::KeyValueCache> caches_;  // by unit
  device::Device& device_;
  Tensor positions_;  // i32 [capacity], 0, 1, 2, …
  std::vector<std::int32_t> seen_;
  std::vector<float> logits_;
};

}  // namespace

namespace {

/// Bytes of text of the targets that an evaluation by `config` counts.
std::int64_t target_bytes(data::TokenReader& reader, const data::Tokenizer& tokenizer,
                          std::int64_t length, const RunConfig& config) {
  const data::Sampler sampler(reader.tokens(), length, reader.tokens(), 0, false);
  const std::int64_t all = sampler.windows_per_epoch(), some = config.train.evaluate_samples;
  const data::LoaderOptions options{
      .micro_batch = 1, .length = length, .document_mask = config.data.document_mask};
  std::int64_t bytes = 0;
  for (std::int64_t window = 0; window < (some > 0 ? std::min(some, all) : all); ++window) {
    const data::Batch batch = data::make_batch(reader, sampler, options, {window});
    std::vector<std::int32_t> counted;
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      if (batch.weights[i] > 0) counted.push_back(batch.targets[i]);
    }
    bytes += static_cast<std::int64_t>(tokenizer.decode(counted).size());
  }
  return bytes;
}

/// `bytes` of text, or 0: the dataset has token ids alone.
void print_evaluation(const checkpoint::Reader& reader, const EvaluateOptions& options,
                      const Evaluation& found, std::int64_t bytes) {
  const parallel::LossSum& sum = found.all;
  const double mean = sum.mean(), by_byte = std::exp(sum.loss / static_cast<double>(bytes));
  const auto tokens = static_cast<std::int64_t>(sum.weight);
  const std::string folder = reader.folder().string();
  if (options.json) {
    nlohmann::ordered_json json{{"checkpoint", folder},
                                {"step", reader.state().step},
                                {"split", options.split},
                                {"loss", mean},
                                {"loss_hex", fmt::format("{:a}", mean)},
                                {"perplexity", std::exp(mean)},
                                {"tokens", tokens},
                                {"bytes", nullptr},
                                {"perplexity_per_byte", nullptr}};
    if (bytes > 0) {
      json["bytes"] = bytes;
      json["perplexity_per_byte"] = by_byte;
    }
    if (found.sources.size() > 1) {
      for (const auto& [name, own] : found.sources) json["sources"][name] = own.mean();
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("checkpoint {}  step {}\n{} loss {:.6f}  perplexity {:.4f}  over {} tokens{}\n",
             folder, reader.state().step, options.split, mean, std::exp(mean), tokens,
             bytes > 0 ? fmt::format("  per byte {:.4f}", by_byte) : "");
  if (found.sources.size() == 1) return;
  for (const auto& [name, own] : found.sources) {
    fmt::print("  {} {:.6f}  over {} tokens\n", name, own.mean(),
               static_cast<std::int64_t>(own.weight));
  }
}

}  // namespace

double evaluate(comm::Session& session, const RunConfig& config, const EvaluateOptions& options) {
  LoadedModel loaded(session, config);
  std::optional<data::Corpus> corpus;
  std::vector<data::Corpus::Split> splits;
  std::int64_t samples = 0;                    // of the run, at the checkpoint
  std::unique_ptr<data::Tokenizer> tokenizer;  // rank 0's
  loaded.load(options.checkpoint, options.sequence, [&] {
    const model::ModelConfig& model = loaded.model->config();
    const std::string path = dataset_of(config, loaded.reader->state());
    const std::int64_t length = model.sequence;
    corpus = data::Corpus::open(path, length);
    const data::Manifest& manifest = corpus->manifest();
    check_vocabulary(path, manifest, model);
    const auto split = select<data::SplitName>(
        "--split", options.split,
        {{"train", data::SplitName::train}, {"valid", data::SplitName::valid}});
    corpus->check_headers();
    splits = corpus->splits(split);
    samples = loaded.reader->state().samples;
    if (splits.empty()) {
      throw Error(
          "dataset {}: the {} split has {} tokens, a window needs {}; use a larger dataset or a "
          "smaller --model.sequence",
          path, options.split, corpus->most_tokens(split), length + 1);
    }
    if (session.rank() == 0 && manifest.tokenizer != "none") {
      tokenizer = data::load_tokenizer(corpus->dataset());
    }
    const std::int64_t micro_batch = config.train.micro_batch > 0
                                         ? config.train.micro_batch
                                         : std::max<std::int64_t>(1, 4096 / length);
    loaded.make_replica(forward_options(config, micro_batch));
  });
  const Evaluation found = comm::or_abandon(loaded.grid, [&] {
    report::PhaseProgress progress(loaded.progress.get(), "evaluate");
    std::vector<parallel::LossSum> sums;
    for (const data::Corpus::Split& split : splits) {
      sums.push_back(evaluate_split(*loaded.replica, *split.reader, config.train.evaluate_samples,
                                    config.data.document_mask, loaded.grid, loaded.watchdog,
                                    progress));
    }
    return evaluation_of(*corpus, splits, sums, samples);
  });
  if (found.all.weight == 0) {
    throw AgreedError("data.path = {}: no token of the {} split has a loss weight; use another one",
                      corpus->dataset().folder().string(), options.split);
  }
  const double mean = found.all.mean();
  if (!std::isfinite(mean)) {
    throw AgreedError("{}: the {} loss over {} tokens is {}; use another checkpoint",
                      loaded.reader->folder().string(), options.split, found.all.weight, mean);
  }
  if (session.rank() == 0) {
    std::int64_t bytes = 0;
    for (const data::Corpus::Split& split : splits) {
      if (tokenizer == nullptr) break;
      bytes += target_bytes(*split.reader, *tokenizer, loaded.model->config().sequence, config);
    }
    print_evaluation(*loaded.reader, options, found, bytes);
  }
  return mean;
}

std::int64_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k,
                          double top_p, double u) {
  const auto count = static_cast<std::int64_t>(logits.size());
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  std::sort(order.begin(), order.end(), likelier);
  if (temperature == 0) return order.front();
  order.resize(static_cast<std::size_t>(top_k > 0 ? std::min(top_k, count) : count));
  const double largest = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weights;
  for (std::int64_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - largest) / temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t end = 0;
  while (end < weights.size() && (end == 0 || kept < top_p * all)) kept += weights[end++];
  double left = u * kept;
  for (std::size_t i = 0; i + 1 < end; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[end - 1];
}

std::string generate(comm::Session& session, const RunConfig& config,
                     const GenerateOptions& options) {
  LoadedModel loaded(session, config);
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<Continuation> continuation;
  data::Manifest manifest;
  loaded.load(options.checkpoint, options.sequence, [&] {
    const checkpoint::Reader& reader = *loaded.reader;
    const auto kept = checkpoint::kept_tokenizer(reader);
    if (kept && config.data.path.empty()) {
      manifest = *kept;
      tokenizer = data::load_tokenizer(manifest, reader.folder());
    } else {
      const data::Corpus corpus =
          data::Corpus::open(dataset_of(config, reader.state()), loaded.model->config().sequence);
      manifest = corpus.manifest();
      check_vocabulary(corpus.dataset().folder().string(), manifest, loaded.model->config());
      tokenizer = data::load_tokenizer(corpus.dataset());
    }
    parallel::StageOptions stage = forward_options(config, 1);
    stage.sequence_parallel = false;  // one row has nothing to share out
    if (config.parallel.context > 1) {
      throw ConfigError("parallel.context", std::to_string(config.parallel.context),
                        "must be 1 for generate", "use parallel.tensor or parallel.pipeline");
    }
    stage.virtual_context = 1;
    loaded.make_replica(stage);
    continuation = std::make_unique<Continuation>(*loaded.replica, loaded.ledger);
  });
  const bool is_root = session.rank() == 0;
  const auto show = [&](std::string_view text) {
    if (!is_root) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  std::vector<std::int32_t> next = tokenizer->encode(options.prompt);
  if (next.empty()) next.push_back(static_cast<std::int32_t>(manifest.end_of_document.value_or(0)));
  std::string text = options.prompt;
  show(text);
  const RandomKey key{static_cast<std::uint64_t>(options.seed), Purpose::generation, 0};
  const bool draws = loaded.replica->stage().holds_last_unit();
  std::vector<std::int32_t> made;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    loaded.watchdog.beat("generate", i);
    const auto logits = comm::or_abandon(loaded.grid, [&] { return continuation->feed(next); });
    std::int64_t id = 0;
    if (draws) {
      // Ids that the tokenizer does not know (a model's vocabulary may be rounded up) are never
      // drawn.
      const auto known = std::min(logits.size(), static_cast<std::size_t>(manifest.vocabulary));
      const auto all = static_cast<std::int64_t>(known);
      const bool finite = first_not_finite(logits.data(), all, DType::f32) == all;
      id = !finite ? -1
                   : sample_token(logits.first(known), options.temperature, options.top_k,
                                  options.top_p, uniform(key, static_cast<std::uint64_t>(i)));
    }
    id = loaded.grid.group(comm::Axis::pipeline).all_reduce(id, comm::Reduction::sum);
    if (id < 0) {
      throw AgreedError("{}: a logit of token {} is NaN or infinite; use another checkpoint",
                        loaded.reader->folder().string(), i);
    }
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
  return is_root ? text : std::string();
}

}  // namespace trireme::train
