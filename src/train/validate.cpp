#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/train/inject.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

void refuse(bool broken, const char* key, const std::string& value, const std::string& rule,
            const std::string& mend) {
  if (broken) throw ConfigError(key, value, rule, mend);
}

/// "nearest that work: 30 and 33" around `value`, multiples of `unit`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("nearest that work: {} and {}", below, below + unit)
                   : fmt::format("nearest that works: {}", unit);
}

std::int64_t largest_divisor(std::int64_t n, std::int64_t most) {
  std::int64_t best = 1;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    for (const std::int64_t each : {d, n / d}) {
      if (each <= most) best = std::max(best, each);
    }
  }
  return best;
}

/// A micro-batch's tokens, and the pairs of tokens that attention compares, whose bytes fit 64 bits
/// with any model.
void check_tokens(const RunConfig& config) {
  constexpr std::int64_t most = std::int64_t{1} << 26, most_pairs = std::int64_t{1} << 56;
  const std::int64_t length = config.model.sequence, micro_batch = config.train.micro_batch;
  refuse(micro_batch > most / length, "train.micro_batch", std::to_string(micro_batch),
         fmt::format("must be at most {} tokens, with model.sequence = {}", most, length),
         fmt::format("use at most {}", std::max<std::int64_t>(1, most / length)));
  refuse(config.model.heads > most_pairs / (micro_batch * length * length), "model.sequence",
         std::to_string(length),
         fmt::format("with {} heads attends to more than {} pairs of tokens", config.model.heads,
                     most_pairs),
         "use shorter sequences");
}

void check_batch(RunConfig& config, int data) {
  TrainConfig& train = config.train;
  const std::int64_t length = config.model.sequence, tokens = train.batch_tokens;
  if (tokens > 0) {
    refuse(tokens / length > most_sequences, "train.batch_tokens", std::to_string(tokens),
           fmt::format("must be at most {} sequences", most_sequences), "use fewer tokens");
    refuse(tokens % length != 0, "train.batch_tokens", std::to_string(tokens),
           fmt::format("must divide by model.sequence = {}", length),
           nearest_multiples(tokens, length));
    train.batch = tokens / length;
  }
  constexpr std::int64_t most_tokens = std::int64_t{1} << 61;
  const std::int64_t most_steps = most_tokens / length / train.batch;
  refuse(train.steps > most_steps, "train.steps", std::to_string(train.steps),
         fmt::format("must be at most 2^61 tokens, {} steps of {} sequences of {}", most_steps,
                     train.batch, length),
         fmt::format("use at most {}", most_steps));
  refuse(train.batch % data != 0, "train.batch", std::to_string(train.batch),
         fmt::format("must divide by the data-parallel degree {}", data),
         nearest_multiples(train.batch, data));
  const std::int64_t per_rank = train.batch / data;
  if (train.micro_batch == 0) train.micro_batch = choose_micro_batch(per_rank, length);
  const std::int64_t below = largest_divisor(per_rank, train.micro_batch);
  refuse(below != train.micro_batch, "train.micro_batch", std::to_string(train.micro_batch),
         fmt::format("must divide the {} sequences of a rank", per_rank),
         fmt::format("nearest that works: {}", below));
  check_tokens(config);
}

/// The dataset against the model: its token ids fit the vocabulary, its text holds a window.
void check_dataset(RunConfig& config, int rank = 0, int ranks = 1) {
  refuse(config.data.path.empty(), "data.path", "\"\"", "a dataset is needed",
         "make one with `trireme prepare --input FILE --output DIR`");
  const std::int64_t length = config.model.sequence;
  const data::Corpus corpus = data::Corpus::open(config.data.path, length);
  corpus.check_headers(rank, ranks);
  const std::int64_t needed = corpus.manifest().vocabulary;
  const std::int64_t tokens = corpus.sources().front().tokens(data::SplitName::train);
  refuse(tokens<(config.data.packs() ? 1 : length + 1), "model.sequence", std::to_string(length),
                fmt::format("{} has {} tokens to train on, and a window takes {}", config.data.path,
                            tokens, length + 1),
                tokens> 1
             ? fmt::format("use at most {}, or more text", tokens - 1)
             : "use a dataset with a training split");
  if (config.model.vocabulary == 0) config.model.vocabulary = needed;
  refuse(config.model.vocabulary < needed, "model.vocabulary",
         std::to_string(config.model.vocabulary),
         fmt::format("must hold the {} token ids of {}", needed, config.data.path),
         fmt::format("use {} or 0", needed));
}

void check_peak(const std::string& peak) {
  if (peak == "measured" || peak == "none") return;
  char* end = nullptr;
  const double value = std::strtod(peak.c_str(), &end);
  refuse(end == peak.c_str() || *end != '\0' || !(value > 0) || value > 1e12, "train.peak", peak,
         "must be measured, none or a positive number of GFLOP/s", "use measured");
}

/// What independent workers cannot be combined with.
void check_average(const RunConfig& config) {
  refuse(config.parallel.servers > 0, "parallel.servers", std::to_string(config.parallel.servers),
         "data_parallel.method = average has no servers", "leave it out");
  refuse(config.parallel.context > 1, "parallel.context", std::to_string(config.parallel.context),
         "must be 1 with data_parallel.method = average", "use 1");
  refuse(config.parallel.zero > 0, "parallel.zero", std::to_string(config.parallel.zero),
         "must be 0 with data_parallel.method = average, whose workers each hold a whole model",
         "use 0");
  refuse(config.zero.offload != "none", "zero.offload", config.zero.offload,
         "must be none with data_parallel.method = average, which sums what is on devices",
         "use none");
  refuse(config.data_parallel.gradients != "fp32", "data_parallel.gradients",
         config.data_parallel.gradients,
         "must be fp32 with data_parallel.method = average, which sends no gradients", "use fp32");
  refuse(config.precision.rounding != "nearest" &&
             config.average.states() == AverageConfig::States::reset,
         "precision.rounding", config.precision.rounding,
         "must be nearest with average.optimizer_state = reset: updates are counted from 0 after "
         "each average, so stochastic rounding would repeat its random numbers",
         "use nearest, or average.optimizer_state = keep");
}

/// In reproducible mode a worker is a run of its own, whose sequences are summed by groups.
void check_worker_groups(const RunConfig& config, const comm::GridShape& shape) {
  if (!trains_alone(config) || !config.numerics.reproducible) return;
  const int workers = shape.of(comm::Axis::data);
  const std::int64_t own = config.train.batch / workers, groups = config.numerics.virtual_data;
  refuse(own % groups != 0, "numerics.virtual_data", std::to_string(groups),
         fmt::format("must divide a worker's {} sequences with numerics.reproducible", own),
         fmt::format("use {}, or a train.batch of {}", own & -own,
                     (own / groups + 1) * groups * workers));
}

/// What parameter servers cannot be combined with, and what cannot be where no worker waits for
/// another.
class ServerRules {
 public:
  ServerRules(const RunConfig& config, const LayoutFacts& facts) : config_(config), facts_(facts) {}

  void check() const {
    const std::int64_t servers = config_.parallel.servers;
    require(servers > 0, "parallel.servers", "0", "must be at least 1", "use 1, or another method");
    const int world = facts_.world;
    const bool alone = world == 1;
    require(servers < world, "parallel.servers", std::to_string(servers),
            "must leave a rank to train",
            alone ? std::string("start more ranks")
                  : fmt::format("use at most {}, or more than {} ranks", world - 1, servers));
    for (const auto& [key, degree] : {std::pair("parallel.tensor", config_.parallel.tensor),
                                      std::pair("parallel.context", config_.parallel.context),
                                      std::pair("parallel.pipeline", config_.parallel.pipeline)}) {
      require(degree == 1, key, std::to_string(degree),
              "must be 1, as each worker holds a whole model,", "use 1");
    }
    require(config_.parallel.zero == 0, "parallel.zero", std::to_string(config_.parallel.zero),
            "must be 0, as servers hold what it would cut,", "use 0");
    require(config_.zero.offload == "none", "zero.offload", config_.zero.offload,
            "must be none, as servers update,", "use none");
    require(config_.precision.rounding == "nearest", "precision.rounding",
            config_.precision.rounding, "must be nearest, as servers round,", "use nearest");
    require(!config_.checkpoint.in_background(), "checkpoint.async", "true",
            "must be false, as servers save,", "use false");
    require(!injects(Fault::Kind::spike) && !injects(Fault::Kind::inf), "train.inject",
            config_.train.inject,
            "spike and inf cannot be made, which are of gradients that servers add up,",
            "use nan, flip or slow");
    if (waits_for_none(config_)) return check_async();
    refuse(config_.server.tolerate_failures, "server.tolerate_failures", "true",
           "is for data_parallel.method = async-server with server.max_staleness of at least 1: "
           "others wait for every worker",
           "use false");
  }

 private:
  /// Throws ConfigError, whose rule names the method, unless it `holds`.
  void require(bool holds, const char* key, const std::string& value, const char* rule,
               const std::string& mend) const {
    refuse(!holds, key, value,
           fmt::format("{} with data_parallel.method = {}", rule, config_.data_parallel.method),
           mend);
  }
  bool injects(Fault::Kind kind) const {
    const std::vector<Fault> faults = parse_faults(config_.train.inject);
    return std::ranges::any_of(faults, [&](const Fault& fault) { return fault.kind == kind; });
  }

  void check_async() const {
    require(config_.precision.compute != "fp16", "precision.compute", "fp16",
            "must be fp32 or bf16, as no step finds a loss scale,", "use bf16");
    require(!config_.numerics.reproducible, "numerics.reproducible", "true",
            "must be false, as updates come as workers finish,",
            "use false, or server.max_staleness = 0");
    require(config_.train.outlier <= 0, "train.outlier", fmt::format("{}", config_.train.outlier),
            "must be 0, as no step is anybody's as a whole,", "use 0");
    require(config_.train.check == "none", "train.check", config_.train.check,
            "must be none, as there are no replicas,", "use none");
    require(!injects(Fault::Kind::flip), "train.inject", config_.train.inject,
            "flip cannot be made", "use nan or slow");
    if (!config_.server.tolerate_failures) return;
    const std::string complaint = comm::survival_complaint(
        comm::library_version(), [](const char* name) { return std::getenv(name); });
    refuse(!complaint.empty(), "server.tolerate_failures", "true", complaint, "or use false");
    // What a dead worker has begun may hold up the others until it counts as dead.
    const double watchdog = config_.train.watchdog;
    require(watchdog <= 0 || watchdog > config_.server.heartbeat, "train.watchdog",
            fmt::format("{}", watchdog),
            "must be 0 or above server.heartbeat with server.tolerate_failures,",
            fmt::format("use {}", 2 * config_.server.heartbeat));
  }

  const RunConfig& config_;
  const LayoutFacts& facts_;
};

/// Every server has something to hold.
void check_shares(const RunConfig& config, const parallel::Stage& worker) {
  const auto idle = [&](int servers) {
    const state::ShardMap map(worker.layout(), servers, 0);
    std::vector<bool> holds(static_cast<std::size_t>(servers), false);
    for (const state::ShardMap::Kind& kind : map.kinds()) {
      const std::vector<std::int64_t>& counts = map.counts(kind.group);
      for (std::size_t s = 0; s < counts.size(); ++s) holds[s] = holds[s] || counts[s] > 0;
    }
    return std::ranges::find(holds, false) != holds.end();
  };
  const int servers = server_ranks(config);
  if (servers == 0 || !idle(servers)) return;
  int some = 1, idle_from = servers;  // halves the interval between a number that works and one not
  while (idle_from - some > 1) {
    const int middle = some + (idle_from - some) / 2;
    (idle(middle) ? idle_from : some) = middle;
  }
  throw ConfigError("parallel.servers", std::to_string(servers),
                    fmt::format("leaves a server without parameters, which are cut in blocks of {}",
                                params::norm_block),
                    fmt::format("use at most {}", some));
}

/// What else a layout can be wrong about (units, schedules), any stage finds when it is made.
void check_stage(const RunConfig& config, const comm::GridShape& shape, const LayoutFacts& facts) {
  const model::Transformer model(config.model);
  parallel::StageOptions options = stage_options(config, shape, facts);
  options.place = parallel::place_of(shape, 0, trains_alone(config));
  const parallel::Stage stage(model, options);
  check_shares(config, stage);
}

}  // namespace

void check_method(const RunConfig& config, const LayoutFacts& facts) {
  const std::string& method = config.data_parallel.method;
  if (method == "server" || method == "async-server") return ServerRules(config, facts).check();
  if (method == "average") return check_average(config);
  TRIREME_ASSERT(method == "allreduce", "data_parallel.method = {}", method);
  refuse(config.parallel.servers > 0, "parallel.servers", std::to_string(config.parallel.servers),
         "is for data_parallel.method = server and async-server", "leave it out");
  refuse(config.numerics.reproducible && config.data_parallel.gradients != "fp32",
         "data_parallel.gradients", config.data_parallel.gradients,
         "must be fp32 with numerics.reproducible, as what is rounded depends on the layout",
         "use fp32");
}

static comm::GridShape check_layout(RunConfig& config, const LayoutFacts& facts) {
  check_method(config, facts);
  const comm::GridShape shape = grid_shape(config, facts);
  check_batch(config, shape.of(comm::Axis::data));
  check_worker_groups(config, shape);
  return shape;
}

void validate(RunConfig& config, const LayoutFacts& facts, int rank, int ranks) {
  config.model.resolve();
  const comm::GridShape shape = check_layout(config, facts);
  check_peak(config.train.peak);
  refuse(config.train.predict != "off" &&
             (config.data_parallel.method != "allreduce" || config.zero.offload != "none"),
         "train.predict", config.train.predict,
         "step time is predicted for data_parallel.method = allreduce without zero.offload alone",
         "use off");
  parse_signals(config.train.signals);
  parse_duration(config.train.time_limit);
  check_faults(parse_faults(config.train.inject), config.train.inject,
               facts.world - server_ranks(config), config.train.steps);
  refuse(config.train.output.empty(), "train.output", "\"\"", "a run folder is needed", "use run");
  check_dataset(config, rank, ranks);
  check_stage(config, shape, facts);
}

void validate_layout(RunConfig& config, const LayoutFacts& facts) {
  config.model.resolve();
  if (!config.data.path.empty()) check_dataset(config);
  refuse(config.model.vocabulary == 0, "model.vocabulary", "0",
         "is needed where data.path names no dataset", "use 256 for bytes, 50257 for GPT-2");
  check_stage(config, check_layout(config, facts), facts);
}

}  // namespace trireme::train
