#include "served.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/cores.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/interrupts.hpp"

#include "trainer.hpp"

namespace trireme::train {

namespace {

using nlohmann::json;

/// The workers or the servers of a job, as a session of their own. Collective over the job.
class Side {
 public:
  Side(const comm::Session& job, bool serves) : comm_(split(job, serves)), session_(comm_) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() = default;
  comm::Session& session() { return session_; }

 private:
  static MPI_Comm split(const comm::Session& job, bool serves) {
    MPI_Comm comm = MPI_COMM_NULL;
    comm::mpi_check(MPI_Comm_split(job.world(), serves ? 1 : 0, job.rank(), &comm),
                    "MPI_Comm_split");
    return comm;
  }
  MPI_Comm comm_;  // until MPI's end: its freeing would be collective
  comm::Session session_;
};

/// One parameter server of a job.
class Server {
 public:
  Server(ServedJob& job, comm::Session& servers, comm::rpc::Endpoint& endpoint)
      : job_(job),
        servers_(servers),
        config_(job.config),
        predicted_(plan::predict_server_memory(job.stage, job.place, job.config.optim)),
        group_(comm::make_mpi_communicator(servers.world(), job.ledger)),
        signals_(parse_signals(config_.train.signals)),
        watchdog_(job.session, config_.train.watchdog),
        shards_(job.stage, job.place, config_.optim, job.threads, job.ledger),
        service_(shards_, endpoint, *group_, recorder_,
                 {.jobs = {{save_work, [this](auto text) { return save(text); }},
                           {load_work, [this](auto text) { return load(text); }}},
                  .signal = [this] { return signals_.caught(); },
                  .watchdog = &watchdog_}) {}

  /// Serves until the workers end the job.
  Ending run() {
    shards_.initialize(static_cast<std::uint64_t>(config_.train.seed));
    probe_environment(job_.session, *job_.everyone, job_.threads);
    recorder_.reset();
    const std::string end = service_.serve();
    if (!end.empty()) throw AgreedError(end);
    const comm::Watchdog::Pause pause(watchdog_);
    return close_job(*job_.everyone, recorder_, account(), Ending::done).ending;
  }

 private:
  std::string save(std::span<const std::byte> text) {
    const comm::Watchdog::Pause pause(watchdog_);
    return save_shards(shards_, config_, state_of(text), *group_, servers_.nodes());
  }

  std::string load(std::span<const std::byte> text) {
    const comm::Watchdog::Pause pause(watchdog_);
    load_shards(shards_, checkpoint::Reader(
                             std::string(reinterpret_cast<const char*>(text.data()), text.size())));
    return {};
  }

  json account() const {
    // What it sends to each worker in a step.
    const auto values = static_cast<double>(size_of(shards_.state().options().shares.compute) *
                                            static_cast<std::size_t>(shards_.place().workers)) *
                        static_cast<double>(shards_.held());
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, service_.steps()));
    return {{"rank", job_.session.rank()},
            {"tensor", 0},
            {"pipeline", 0},
            {"data", 0},
            {"server", shards_.place().index},
            {"sections", recorder_.seconds()},
            {"time", report::rank_time(recorder_)},
            {"communication",
             {{"servers",
               {{"bytes_per_step", static_cast<double>(service_.sent()) / steps},
                {"seconds_per_step", 0.0},
                {"least_bytes_per_step", values}}}}},
            {"memory", memory_account(predicted_, job_.ledger)}};
  }

  ServedJob& job_;
  comm::Session& servers_;
  const RunConfig& config_;
  Recorder recorder_;
  std::map<device::Use, std::int64_t> predicted_;
  std::unique_ptr<comm::Communicator> group_;
  SignalWatch signals_;
  comm::Watchdog watchdog_;
  data_parallel::ServerShards shards_;
  data_parallel::ParameterServer service_;
};

/// This rank's training beside servers.
Ending train_served(ServedJob& job, Servers& servers, comm::Session& workers,
                    const config::Fields& fields) {
  comm::GridOptions options = grid_options(job.config);
  // No tensor passes between workers: NCCL's memory would be for nothing.
  if (!job.computes.on_host() && options.comm.data == "auto") options.comm.data = "mpi";
  comm::Grid grid(workers, job.plan.shape, job.ledger, job.plan.shard, options);
  job.computes.note_free_bytes("with_groups");
  Trainer trainer(workers, grid, job.computes, job.ledger, job.config, job.plan.facts, fields,
                  &servers);
  try {
    return trainer.run();
  } catch (const std::exception& error) {
    trainer.record_failure(error.what());
    const bool agreed = dynamic_cast<const AgreedError*>(&error) != nullptr;
    // All workers leave in order, and so are the servers to; else the job is ended at once.
    if (agreed && servers.open && workers.rank() == 0) servers.worker->end(error.what());
    throw;
  }
}

}  // namespace

Environment probe_environment(const comm::Session& session, comm::Communicator& everyone,
                              int threads) {
  comm::require_same_environment(
      everyone, {.instructions = fmt::format("{}, bf16 by {}", ops::instruction_set(),
                                             ops::cpu_bf16_products()),
                 .libraries = "oneDNN " + versions().at("onednn").get<std::string>()});
  return {.provenance = report::provenance(everyone, versions()),
          .shared_cores = comm::core_warning(session, threads)};
}

std::string save_shards(data_parallel::ServerShards& shards, const RunConfig& config,
                        const checkpoint::State& state, comm::Communicator& servers,
                        const std::vector<int>& nodes) {
  std::vector<checkpoint::Piece> pieces;
  const state::ModelState& held = shards.state();
  const checkpoint::Writers writers{shards.place().index, shards.place().servers};
  checkpoint::append_pieces(pieces, "parameters", held, held.parameters(), true, writers);
  for (const auto& kept : shards.optimizer().states()) {
    checkpoint::append_pieces(pieces, kept.name, held, kept.flat, true, writers);
  }
  checkpoint::FileLayout files;
  if (config.checkpoint.files == "node") files.nodes = nodes;
  return checkpoint::save(config.train.output, state, pieces, servers, files).string();
}

void load_shards(data_parallel::ServerShards& shards, const checkpoint::Reader& reader) {
  const state::ModelState& state = shards.state();
  checkpoint::load_pieces(reader, "parameters", state, state.parameters(), true);
  for (const auto& kept : shards.optimizer().states()) {
    load_optimizer(reader, kept.name, state, kept.flat, true);
  }
  shards.refresh();
}

json memory_account(const std::map<device::Use, std::int64_t>& predicted,
                    const device::MemoryLedger& ledger) {
  json memory = json::object();
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    const auto found = predicted.find(use);
    const std::int64_t foretold = found == predicted.end() ? 0 : found->second;
    const std::int64_t measured = ledger.peak(use);
    if (foretold == 0 && measured == 0) continue;
    nlohmann::json& bytes = memory[std::string(device::name_of(use))];
    bytes = {{"predicted", foretold}, {"measured", measured}};
    if (!plan::predicts_all(use, ledger.device().is_host(), true)) bytes["in_part"] = true;
  }
  return memory;
}

std::string to_text(const checkpoint::State& state) {
  json attachments = json::array();
  for (const auto& file : state.attachments) {
    attachments.push_back({file.name, json::binary({file.content.begin(), file.content.end()})});
  }
  const std::vector<std::uint8_t> bytes = json::to_cbor({{"step", state.step},
                                                         {"samples", state.samples},
                                                         {"seed", state.seed},
                                                         {"config", state.config},
                                                         {"versions", state.versions},
                                                         {"extra", state.extra},
                                                         {"attachments", attachments}});
  return {bytes.begin(), bytes.end()};
}

checkpoint::State state_of(std::span<const std::byte> text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const json all = json::from_cbor(bytes, bytes + text.size());
  checkpoint::State state{.step = all.at("step"),
                          .samples = all.at("samples"),
                          .seed = all.at("seed"),
                          .config = all.at("config"),
                          .versions = all.at("versions"),
                          .extra = all.at("extra"),
                          .attachments = {}};
  for (const json& file : all.at("attachments")) {
    const auto& content = file.at(1).get_binary();
    state.attachments.push_back(
        {file.at(0).get<std::string>(), std::string(content.begin(), content.end())});
  }
  return state;
}

namespace {

/// The model's configuration, once the job's is settled.
const model::ModelConfig& settle(const ServedJob& job, RunConfig& config, ComputeDevice& computes) {
  computes.settle_precision(config.precision, *job.everyone);
  comm::agree(*job.everyone, [&] { validate(config, job.plan.facts); });
  return config.model;
}

const RunConfig& agree_on_method(comm::Session& session, const RunConfig& config) {
  device::MemoryLedger ledger;  // of an agreement that ends here
  const auto all = comm::make_mpi_communicator(session.world(), ledger);
  comm::agree(*all, [&] { check_method(config, {.world = session.size()}); });
  return config;
}

/// In step with others a worker is one of its data axis; else its grid is itself.
parallel::StageOptions worker_options(const RunConfig& config, const GridPlan& plan) {
  parallel::StageOptions options = stage_options(config, plan.shape, plan.facts);
  if (!waits_for_none(config)) {
    options.place = {.data = plan.shape.of(comm::Axis::data), .shard = plan.shard};
  }
  return options;
}

}  // namespace

ServedJob::ServedJob(comm::Session& ranks, RunConfig& settled, const DeviceSource& devices)
    : session(ranks),
      config(agree_on_method(ranks, settled)),
      computes(config.device, session, server_ranks(config), devices),
      ledger(computes.device()),
      plan(plan_grid(config, session, computes.on_host())),
      everyone(comm::make_mpi_communicator(session.world(), ledger)),
      model(settle(*this, settled, computes)),
      stage(model, worker_options(config, plan)),
      place({.workers = plan.shape.of(comm::Axis::data),
             .servers = server_ranks(config),
             .gradients = dtype_from_name(config.data_parallel.gradients)}),
      threads(threads_of_rank(config.parallel, session)) {
  if (serves()) place.index = session.rank() - first_server();
  computes.note_free_bytes("before_groups");
}

Ending run_served(comm::Session& session, RunConfig& config, const config::Fields& fields,
                  const DeviceSource& devices) {
  ServedJob job(session, config, devices);
  Side side(session, job.serves());
  comm::rpc::Endpoint endpoint(
      session.world(),
      data_parallel::messages::options(static_cast<int>(job.stage.layout().groups().size())));
  Ending ending = Ending::done;
  if (job.serves()) {
    Server server(job, side.session(), endpoint);
    ending = server.run();
    endpoint.close();
  } else {
    Servers servers{session, *job.everyone, endpoint, job.place};
    ending = train_served(job, servers, side.session(), fields);
    endpoint.close();
  }
  return ending;
}

}  // namespace trireme::train
