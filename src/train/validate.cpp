#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "trireme/comm/grid.hpp"
#include "trireme/comm/launcher.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/train/inject.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

/// "nearest that work: 30 and 33" around `value`, multiples of `unit`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("nearest that work: {} and {}", below, below + unit)
                   : fmt::format("nearest that works: {}", unit);
}

void check_batch(RunConfig& config, int data) {
  TrainConfig& train = config.train;
  if (train.batch_tokens > 0) {
    if (train.batch_tokens % config.model.sequence != 0) {
      throw ConfigError("train.batch_tokens", std::to_string(train.batch_tokens),
                        fmt::format("must divide by model.sequence = {}", config.model.sequence),
                        nearest_multiples(train.batch_tokens, config.model.sequence));
    }
    train.batch = train.batch_tokens / config.model.sequence;
    if (train.batch > most_sequences) {
      throw ConfigError("train.batch_tokens", std::to_string(train.batch_tokens),
                        fmt::format("must be at most {} sequences", most_sequences),
                        "use fewer tokens");
    }
  }
  if (train.batch % data != 0) {
    throw ConfigError("train.batch", std::to_string(train.batch),
                      fmt::format("must divide by the data-parallel degree {}", data),
                      nearest_multiples(train.batch, data));
  }
  const std::int64_t per_rank = train.batch / data;
  if (train.micro_batch == 0)
    train.micro_batch = choose_micro_batch(per_rank, config.model.sequence);
  if (per_rank % train.micro_batch != 0) {
    std::int64_t below = std::min(train.micro_batch, per_rank);
    while (per_rank % below != 0) --below;
    throw ConfigError("train.micro_batch", std::to_string(train.micro_batch),
                      fmt::format("must divide the {} sequences of a rank", per_rank),
                      fmt::format("nearest that works: {}", below));
  }
}

/// The dataset against the model: its token ids fit the vocabulary, its text holds a window.
void check_dataset(RunConfig& config) {
  if (config.data.path.empty()) {
    throw ConfigError("data.path", "\"\"", "a dataset is needed",
                      "make one with `trireme prepare --input FILE --output DIR`");
  }
  const data::Manifest manifest = data::Dataset::open(config.data.path).manifest();
  std::int64_t tokens = 0;
  for (const data::ShardInfo& shard : manifest.train) tokens += shard.tokens;
  if (tokens <= config.model.sequence) {
    throw ConfigError("model.sequence", std::to_string(config.model.sequence),
                      fmt::format("{} has {} tokens to train on, and a window takes {}",
                                  config.data.path, tokens, config.model.sequence + 1),
                      fmt::format("use at most {}, or more text", tokens - 1));
  }
  const std::int64_t needed = manifest.vocabulary;
  if (config.model.vocabulary == 0) config.model.vocabulary = needed;
  if (config.model.vocabulary < needed) {
    throw ConfigError("model.vocabulary", std::to_string(config.model.vocabulary),
                      fmt::format("must hold the {} token ids of {}", needed, config.data.path),
                      fmt::format("use {} or 0", needed));
  }
}

void check_peak(const std::string& peak) {
  if (peak == "measured" || peak == "none") return;
  char* end = nullptr;
  const double value = std::strtod(peak.c_str(), &end);
  if (end == peak.c_str() || *end != '\0' || !(value > 0) || value > 1e12) {
    throw ConfigError("train.peak", peak, "must be measured, none or a positive number of GFLOP/s",
                      "use measured");
  }
}

/// What independent workers cannot be combined with.
void check_average(const RunConfig& config) {
  const auto refuse = [](const char* key, const std::string& value, const char* rule,
                         const char* mend) { throw ConfigError(key, value, rule, mend); };
  if (config.parallel.servers > 0) {
    refuse("parallel.servers", std::to_string(config.parallel.servers),
           "data_parallel.method = average has no servers", "leave it out");
  }
  if (config.parallel.zero > 0) {
    refuse("parallel.zero", std::to_string(config.parallel.zero),
           "must be 0 with data_parallel.method = average, whose workers each hold a whole model",
           "use 0");
  }
  if (config.zero.offload != "none") {
    refuse("zero.offload", config.zero.offload,
           "must be none with data_parallel.method = average, which sums what is on devices",
           "use none");
  }
  if (config.precision.rounding != "nearest" &&
      config.average.states() == AverageConfig::States::reset) {
    refuse("precision.rounding", config.precision.rounding,
           "must be nearest with average.optimizer_state = reset, after which updates are counted "
           "anew and would draw the same again",
           "use nearest, or average.optimizer_state = keep");
  }
}

/// In reproducible mode a worker is a run of its own, whose sequences are summed by groups.
void check_worker_groups(const RunConfig& config, const comm::GridShape& shape) {
  const std::int64_t own = config.train.batch / shape.of(comm::Axis::data);
  const std::int64_t groups = config.numerics.virtual_data;
  if (!trains_alone(config) || !config.numerics.reproducible || own % groups == 0) return;
  throw ConfigError(
      "numerics.virtual_data", std::to_string(groups),
      fmt::format("must divide a worker's {} sequences with numerics.reproducible", own),
      fmt::format("use {}, or a train.batch of {}", own & -own,
                  (own / groups + 1) * groups * shape.of(comm::Axis::data)));
}

using Refuse = std::function<void(const char* key, const std::string& value, const char* rule,
                                  const std::string& mend)>;

/// What cannot be where no worker waits for another.
void check_async(const RunConfig& config, const Refuse& refuse) {
  if (config.precision.compute == "fp16") {
    refuse("precision.compute", "fp16", "must be fp32 or bf16, as no step finds a loss scale,",
           "use bf16");
  }
  if (config.numerics.reproducible) {
    refuse("numerics.reproducible", "true", "must be false, as updates come as workers finish,",
           "use false, or server.max_staleness = 0");
  }
  if (config.train.outlier > 0) {
    refuse("train.outlier", fmt::format("{}", config.train.outlier),
           "must be 0, as no step is anybody's as a whole,", "use 0");
  }
  if (config.train.check != "none") {
    refuse("train.check", config.train.check, "must be none, as there are no replicas,",
           "use none");
  }
  if (config.checkpoint.every_minutes > 0) {
    refuse("checkpoint.every_minutes", fmt::format("{}", config.checkpoint.every_minutes),
           "must be 0, as all pause at a step that is known beforehand,", "use checkpoint.every");
  }
  for (const Fault& fault : parse_faults(config.train.inject)) {
    if (fault.kind != Fault::Kind::flip) continue;
    refuse("train.inject", config.train.inject, "flip cannot be made", "use nan or slow");
  }
  if (!config.server.tolerate_failures) return;
  const std::string complaint = comm::survival_complaint(
      comm::library_version(), [](const char* name) { return std::getenv(name); });
  if (!complaint.empty()) {
    throw ConfigError("server.tolerate_failures", "true", complaint, "or use false");
  }
  // What a dead worker has begun may hold up the others until it counts as dead.
  const double watchdog = config.train.watchdog;
  if (watchdog > 0 && watchdog <= config.server.heartbeat) {
    refuse("train.watchdog", fmt::format("{}", watchdog),
           "must be 0 or above server.heartbeat with server.tolerate_failures,",
           fmt::format("use {}", 2 * config.server.heartbeat));
  }
}

/// What parameter servers cannot be combined with.
void check_server(const RunConfig& config, const LayoutFacts& facts) {
  const Refuse refuse = [&](const char* key, const std::string& value, const char* rule,
                            const std::string& mend) {
    throw ConfigError(
        key, value,
        fmt::format("{} with data_parallel.method = {}", rule, config.data_parallel.method), mend);
  };
  const std::int64_t servers = config.parallel.servers;
  if (servers == 0) {
    refuse("parallel.servers", "0", "must be at least 1", "use 1, or another method");
  }
  if (servers >= facts.world) {
    refuse("parallel.servers", std::to_string(servers), "must leave a rank to train",
           facts.world > 1
               ? fmt::format("use at most {}, or more than {} ranks", facts.world - 1, servers)
               : std::string("start more ranks"));
  }
  const auto one = [&](const char* key, std::int64_t degree) {
    if (degree == 1) return;
    refuse(key, std::to_string(degree), "must be 1, as each worker holds a whole model,", "use 1");
  };
  one("parallel.tensor", config.parallel.tensor);
  one("parallel.pipeline", config.parallel.pipeline);
  if (config.parallel.zero > 0) {
    refuse("parallel.zero", std::to_string(config.parallel.zero),
           "must be 0, as servers hold what it would cut,", "use 0");
  }
  if (config.zero.offload != "none") {
    refuse("zero.offload", config.zero.offload, "must be none, as servers update,", "use none");
  }
  if (config.precision.rounding != "nearest") {
    refuse("precision.rounding", config.precision.rounding, "must be nearest, as servers round,",
           "use nearest");
  }
  if (config.checkpoint.in_background()) {
    refuse("checkpoint.async", "true", "must be false, as servers save,", "use false");
  }
  for (const Fault& fault : parse_faults(config.train.inject)) {
    if (fault.kind != Fault::Kind::spike && fault.kind != Fault::Kind::inf) continue;
    refuse("train.inject", config.train.inject,
           "spike and inf cannot be made, which are of gradients that servers add up,",
           "use nan, flip or slow");
  }
  if (waits_for_none(config)) return check_async(config, refuse);
  if (config.server.tolerate_failures) {
    throw ConfigError("server.tolerate_failures", "true",
                      "is for data_parallel.method = async-server with server.max_staleness of at "
                      "least 1: others wait for every worker",
                      "use false");
  }
}

/// Every server has something to hold.
void check_shares(const RunConfig& config, const parallel::Stage& worker) {
  const auto idle = [&](int servers) {
    for (int s = 0; s < servers; ++s) {
      if (state::ShardMap(worker.layout(), servers, s).elements() == 0) return true;
    }
    return false;
  };
  const int servers = server_ranks(config);
  if (servers == 0 || !idle(servers)) return;
  int fewer = servers - 1;
  while (fewer > 1 && idle(fewer)) --fewer;
  throw ConfigError("parallel.servers", std::to_string(servers),
                    fmt::format("leaves a server without parameters, which are cut in blocks of {}",
                                params::norm_block),
                    fmt::format("use at most {}", fewer));
}

/// What else a layout can be wrong about (units, schedules), any stage finds when it is made.
void check_stage(const RunConfig& config, const comm::GridShape& shape, const LayoutFacts& facts) {
  const model::Transformer model(config.model);
  parallel::StageOptions options = stage_options(config, shape, facts);
  options.place =
      parallel::place_of(shape, shard_ranks(config, shape, facts), 0, trains_alone(config));
  const parallel::Stage stage(model, options);
  check_shares(config, stage);
}

}  // namespace

void check_method(const RunConfig& config, const LayoutFacts& facts) {
  const std::string& method = config.data_parallel.method;
  if (method == "server" || method == "async-server") return check_server(config, facts);
  if (method == "average") return check_average(config);
  TRIREME_ASSERT(method == "allreduce", "data_parallel.method = {}", method);
  if (config.parallel.servers > 0) {
    throw ConfigError("parallel.servers", std::to_string(config.parallel.servers),
                      "is for data_parallel.method = server and async-server", "leave it out");
  }
}

void validate(RunConfig& config, const LayoutFacts& facts) {
  config.model.resolve();
  check_method(config, facts);
  const comm::GridShape shape = grid_shape(config, facts);
  check_batch(config, shape.of(comm::Axis::data));
  check_worker_groups(config, shape);
  check_peak(config.train.peak);
  parse_signals(config.train.signals);
  parse_duration(config.train.time_limit);
  parse_faults(config.train.inject);
  if (config.train.output.empty()) {
    throw ConfigError("train.output", "\"\"", "a run folder is needed", "use run");
  }
  check_dataset(config);
  check_stage(config, shape, facts);
}

void validate_layout(RunConfig& config, const LayoutFacts& facts) {
  config.model.resolve();
  if (!config.data.path.empty()) check_dataset(config);
  if (config.model.vocabulary == 0) {
    throw ConfigError("model.vocabulary", "0", "is needed where data.path names no dataset",
                      "use 256 for bytes, 50257 for GPT-2");
  }
  check_method(config, facts);
  const comm::GridShape shape = grid_shape(config, facts);
  check_batch(config, shape.of(comm::Axis::data));
  check_worker_groups(config, shape);
  check_stage(config, shape, facts);
}

}  // namespace trireme::train
