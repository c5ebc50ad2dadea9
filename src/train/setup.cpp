#include "trireme/train/setup.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <dnnl.h>
#include <hdf5.h>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/comm/shape.hpp"
#include "trireme/data/hdf5.hpp"
#include "trireme/model/block.hpp"
#include "trireme/schedule/schedule.hpp"

namespace trireme::train {

int threads_of_rank(const parallel::ParallelConfig& config, const comm::Session& session) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) {
    if (const int n = std::atoi(threads); n > 0) return n;
  }
  return std::max(1, session.cores().usable / session.cores().ranks);
}

std::int64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::int64_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %" SCNd64, &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

std::int64_t choose_micro_batch(std::int64_t per_rank, std::int64_t sequence) {
  std::int64_t best = 1;
  for (std::int64_t n = 1; n <= per_rank && n * sequence <= 4096; ++n) {
    if (per_rank % n == 0) best = n;
  }
  return best;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return path;
  std::vector<std::string> broken;
  if (const auto found = checkpoint::newest(path, &broken)) return *found;
  throw Error("checkpoint {}: {}; name a run folder or one of its step-… folders", path.string(),
              broken.empty() ? std::string("there is none here") : broken.front());
}

std::string dataset_of(const RunConfig& config, const checkpoint::State& state) {
  if (!config.data.path.empty()) return config.data.path;
  const nlohmann::json::json_pointer path("/data/path");
  if (state.config.contains(path) && state.config.at(path).is_string()) {
    return state.config.at(path).get<std::string>();
  }
  throw Error("data.path: the checkpoint names no dataset; name one with --data.path");
}

model::ModelConfig model_of(const checkpoint::Reader& reader) {
  const nlohmann::json& saved = reader.state().config;
  model::ModelConfig config;
  config::Fields fields;
  fields.section("model", config);
  if (!saved.contains("model")) {
    throw Error("checkpoint: its configuration has no model; use another checkpoint");
  }
  fields.from_json({{"model", saved.at("model")}}, config::Source::file, "checkpoint");
  config.resolve();
  if (config.vocabulary == 0) {
    throw Error("checkpoint: model.vocabulary = 0: must be known; use another checkpoint");
  }
  const std::string where = reader.folder().string();
  if (config.layers > static_cast<std::int64_t>(reader.tensors().size())) {
    throw Error("{}: model.layers = {}, and it holds {} tensors; use another checkpoint", where,
                config.layers, reader.tensors().size());
  }
  const model::Transformer model(config);
  for (const params::Parameter& row : model.table().rows()) {
    const checkpoint::Reader::Entry* entry = reader.find("parameters/" + row.name);
    if (entry == nullptr || entry->shape != row.shape) {
      throw Error(
          "{}: tensor parameters/{}: {}, and its configuration means {}; use another "
          "checkpoint",
          where, row.name, entry == nullptr ? "is missing" : "is " + entry->shape.to_string(),
          row.shape.to_string());
    }
  }
  return config;
}

LayoutFacts layout_facts(const RunConfig& config, const comm::Session& session) {
  LayoutFacts facts{.world = session.size(), .node_of = session.nodes()};
  facts.host = config.device.type != "cuda";
  if (const auto path = schedule::path_of(config.parallel.schedule)) {
    facts.schedule_text = schedule::read_schedule_text(*path);
  }
  return facts;
}

comm::GridOptions grid_options(const RunConfig& config) {
  return {.comm = config.comm, .reproducible = config.numerics.reproducible};
}

GridPlan plan_grid(const RunConfig& config, comm::Session& session, bool host) {
  device::MemoryLedger ledger;  // of an agreement that ends here
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  GridPlan plan{.facts = {.world = session.size(), .node_of = session.nodes()}};
  plan.facts.host = host;
  plan.facts.schedule_text =
      comm::of_rank_zero(*world, [&] { return layout_facts(config, session).schedule_text; });
  comm::agree(*world, [&] { plan.shape = grid_shape(config, plan.facts); });
  return plan;
}

int server_ranks(const RunConfig& config) {
  const std::string& method = config.data_parallel.method;
  const bool served = method == "server" || method == "async-server";
  return served ? static_cast<int>(config.parallel.servers) : 0;
}

bool waits_for_none(const RunConfig& config) {
  return config.data_parallel.method == "async-server" && config.server.max_staleness > 0;
}

RunConfig without_servers(RunConfig config) {
  config.data_parallel = {};
  config.parallel.servers = 0;
  return config;
}

bool trains_alone(const RunConfig& config) { return config.data_parallel.method == "average"; }

plan::CudaWork cuda_work(const RunConfig& config) {
  const bool cuts = config.numerics.reproducible ? config.numerics.virtual_context > 1
                                                 : config.parallel.context > 1;
  return {
      .plain_attention = !config.data.document_mask && config.model.attention_dropout == 0 && !cuts,
      .deterministic_attention =
          config.numerics.reproducible || config.device.deterministic_attention};
}

namespace {

/// Data ranks that share state.
int shard_ranks(const RunConfig& config, const comm::GridShape& shape, const LayoutFacts& facts) {
  if (trains_alone(config)) return 1;
  const std::string& group = config.zero.group;
  if (group == "all") return comm::shard_degree(shape, 0);
  if (group == "node") {
    return facts.node_of.empty() ? shape.copies() : comm::shard_inside_node(shape, facts.node_of);
  }
  const std::int64_t ranks = to_number<std::int64_t>(group).value_or(0);
  if (ranks < 1) {
    throw ConfigError("zero.group", group, "must be all, node or a number of data ranks",
                      "use all");
  }
  return comm::shard_degree(shape, ranks);
}

}  // namespace

comm::GridShape grid_shape(const RunConfig& config, const LayoutFacts& facts) {
  if (config.parallel.layout == "auto") {
    throw ConfigError("parallel.layout", "auto", "is for trireme train",
                      "use given; trireme plan --search finds the same layout");
  }
  comm::GridShape shape = comm::make_grid_shape(facts.world - server_ranks(config),
                                                {.tensor = config.parallel.tensor,
                                                 .context = config.parallel.context,
                                                 .pipeline = config.parallel.pipeline,
                                                 .data = config.parallel.data});
  shape.shard = shard_ranks(config, shape, facts);
  const bool reproducible = config.numerics.reproducible;
  const int tensor = shape.of(comm::Axis::tensor);
  const int tiles = reproducible ? static_cast<int>(config.numerics.virtual_tensor) : tensor;
  shape.kv = model::Attention::kv_ranks(config.model, tensor, tiles, reproducible);
  return shape;
}

namespace {

model::Recompute recompute_of(const std::string& name, bool host, std::int64_t width) {
  using model::Recompute;
  return select<Recompute>("parallel.recompute", name,
                           {{"auto", parallel::usual_recompute(host, width)},
                            {"none", Recompute::none},
                            {"cheap", Recompute::cheap},
                            {"selective", Recompute::selective},
                            {"full", Recompute::full}});
}

}  // namespace

namespace {

/// Keys and values of context ranks, around a ring.
bool passes_around(const RunConfig& config) {
  const bool usual = config.parallel.context > 2 && !config.numerics.reproducible;
  return select<bool>("context.exchange", config.context.exchange,
                      {{"gather", false}, {"ring", true}, {"auto", usual}});
}

}  // namespace

parallel::StageOptions stage_options(const RunConfig& config, const comm::GridShape& shape,
                                     const LayoutFacts& facts) {
  const std::int64_t per_rank = config.train.batch / shape.of(comm::Axis::data);
  return {.place = {},
          .schedule = config.parallel.schedule,
          .schedule_text = facts.schedule_text,
          .virtual_stages = static_cast<int>(config.parallel.virtual_stages),
          .micro_batches = static_cast<int>(per_rank / config.train.micro_batch),
          .sequences = config.train.micro_batch,
          .zero = static_cast<int>(config.parallel.zero),
          .reshard_after_forward = config.zero.reshard_after_forward,
          .offload = select<bool>("zero.offload", config.zero.offload,
                                  {{"none", false}, {"optimizer", true}}),
          .served = server_ranks(config) > 0,
          .sequence_parallel = config.parallel.sequence,
          .recompute = recompute_of(config.parallel.recompute, facts.host, config.model.width),
          .exact_gelu = facts.host,
          .products_on_gpu = !facts.host,
          .chunks = config.parallel.overlap,
          .compute = dtype_from_name(config.precision.compute),
          .reads_masters = facts.host && config.precision.rounding == "nearest",
          .sent_gradients = dtype_from_name(config.data_parallel.gradients),
          .reproducible = config.numerics.reproducible,
          .virtual_tensor = static_cast<int>(config.numerics.virtual_tensor),
          .virtual_data = static_cast<int>(config.numerics.virtual_data),
          .virtual_context = static_cast<int>(config.numerics.virtual_context),
          .ring = passes_around(config),
          .planned = facts.planned};
}

parallel::StageOptions forward_options(const RunConfig& config, std::int64_t sequences) {
  return {.place = {},
          .schedule_text = {},
          .virtual_stages = static_cast<int>(config.parallel.virtual_stages),
          .sequences = sequences,
          .train = false,
          .zero = static_cast<int>(config.parallel.zero),
          .sequence_parallel = config.parallel.sequence,
          .chunks = config.parallel.overlap,
          .reproducible = config.numerics.reproducible,
          .virtual_tensor = static_cast<int>(config.numerics.virtual_tensor),
          .virtual_data = static_cast<int>(config.numerics.virtual_data),
          .virtual_context = static_cast<int>(config.numerics.virtual_context),
          .ring = passes_around(config)};
}

parallel::ReplicaOptions replica_options(const RunConfig& config,
                                         const parallel::StageOptions& stage, int threads) {
  parallel::ReplicaOptions options;
  options.stage = stage;
  options.optim = config.optim;
  options.threads = threads;
  options.bucket_elements = bucket_elements(config);
  options.overlap = config.parallel.overlap;
  options.seed = static_cast<std::uint64_t>(config.train.seed);
  options.stochastic_rounding = select<bool>("precision.rounding", config.precision.rounding,
                                             {{"nearest", false}, {"stochastic", true}});
  options.alone = trains_alone(config);
  options.trace = config.train.trace;
  options.graphs = config.device.graphs;
  return options;
}

std::int64_t bucket_elements(const RunConfig& config) {
  return config.parallel.bucket_mb * (1 << 20) / static_cast<std::int64_t>(sizeof(float));
}

nlohmann::json versions() {
  const dnnl_version_t* dnnl = dnnl_version();
  unsigned major = 0, minor = 0, release = 0;
  {
    // The first call into the library must be made so: a file that could not be closed on a full
    // disk makes its own clean-up at exit crash, and the lock's set-up turns that off.
    const data::hdf5::Lock lock;
    H5get_libversion(&major, &minor, &release);
  }
  return {{"trireme", TRIREME_VERSION},
          {"compiler", __VERSION__},
          {"mpi", comm::library_version()},
          {"hdf5", fmt::format("{}.{}.{}", major, minor, release)},
          {"onednn", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)}};
}

}  // namespace trireme::train
