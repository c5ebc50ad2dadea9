#include "served.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/data_parallel/served_worker.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/interrupts.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::train {

namespace {

using nlohmann::json;

/// The names of what servers do between steps, see messages::work.
constexpr const char* save_work = "save";
constexpr const char* load_work = "load";

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
        predicted_(predict_served(
            plan::predict_server_memory(job.stage, job.place, job.config.optim), true)),
        group_(comm::make_mpi_communicator(servers.world(), job.ledger)),
        signals_(parse_signals(job.config.train.signals)),
        shards_(job.stage, job.place, job.config.optim, job.threads, job.ledger),
        service_(shards_, endpoint, *group_, job.recorder,
                 {.jobs = {{save_work, [this](auto text) { return save(text); }},
                           {load_work, [this](auto text) { return load(text); }}},
                  .signal = [this] { return signals_.caught(); },
                  .watchdog = &job.watchdog}) {}

  /// Serves until the workers end the job.
  Ending run() {
    shards_.initialize(static_cast<std::uint64_t>(job_.config.train.seed));
    probe_environment(job_, *job_.everyone);
    job_.recorder.reset();
    job_.starting.reset();
    const std::string end = service_.serve();
    if (!end.empty()) throw AgreedError(end);
    const comm::Watchdog::Pause unwatched(job_.watchdog);
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, service_.steps()));
    return close_job(*job_.everyone, job_.recorder,
                     server_account(job_, shards_, predicted_, service_.sent(), steps),
                     Ending::done)
        .ending;
  }

 private:
  std::string save(std::span<const std::byte> text) {
    const comm::Watchdog::Pause unwatched(job_.watchdog);
    return save_shards(shards_, job_.config, state_of(text), *group_, servers_.nodes());
  }

  std::string load(std::span<const std::byte> text) {
    const comm::Watchdog::Pause unwatched(job_.watchdog);
    load_shards(shards_, checkpoint::Reader(
                             std::string(reinterpret_cast<const char*>(text.data()), text.size())));
    return {};
  }

  ServedJob& job_;
  comm::Session& servers_;
  MemoryPrediction predicted_;
  std::unique_ptr<comm::Communicator> group_;
  SignalWatch signals_;
  data_parallel::ServerShards shards_;
  data_parallel::ParameterServer service_;
};

/// The workers' side: servers hold the model, and every step waits for all workers.
class ServedMethod final : public Method {
 public:
  ServedMethod(ServedJob& job, comm::Grid& grid, comm::rpc::Endpoint& endpoint)
      : Method(job, grid), served_(job), endpoint_(endpoint) {}

  void configure(parallel::ReplicaOptions& options) override {
    options.make_method = [this](const parallel::Stage& stage, const state::ModelState& state,
                                 ops::Ops& ops, device::MemoryLedger& ledger) {
      auto worker = std::make_unique<data_parallel::ServedWorker>(
          data_parallel::ServedWorker::Parts{stage, state, ops, endpoint_, job_.recorder,
                                             served_.place},
          ledger);
      worker_ = worker.get();
      return worker;
    };
  }
  void configure(plan::MemoryQuestion& question) const override {
    question.servers = served_.place;
    question.snapshots = false;  // servers save what they hold
  }
  comm::Communicator& everyone() override { return *served_.everyone; }
  void open() override {
    endpoint_.start();
    open_ = true;
  }
  void begin_steps(std::int64_t /*windows*/) override { worker_->reset_traffic(); }
  int signal() const override { return worker_->signal(); }
  void close() override { end({}); }
  /// Servers wait for what worker 0 has for them, and must learn that the job ends, with an error
  /// where `text` is not empty.
  void end(const std::string& text) {
    if (std::exchange(open_, false) && grid_.world().rank() == 0) worker_->end(text);
  }

  /// Servers load, and the replica's refresh() brings the values.
  void load(const checkpoint::Reader& reader, Health& health,
            std::vector<std::string>& notes) override {
    if (grid_.world().rank() == 0) worker_->work(load_work, reader.folder().string());
    load_shared(reader, health, notes);
  }
  StartedSave save(const checkpoint::State& state, bool /*background*/) override {
    return {
        comm::of_rank_zero(grid_.world(), [&] { return worker_->work(save_work, to_text(state)); }),
        nullptr};
  }

  void describe(RunStart& start) const override {
    const data_parallel::ServerPlace& place = served_.place;
    start.place["servers"] = place.servers;
    start.lines.push_back(
        fmt::format("parameter servers: {} hold the model for {} workers, who send gradients in {}",
                    place.servers, place.workers, name_of(place.gradients)));
  }
  nlohmann::json further_traffic(std::int64_t steps) const override {
    return {{"servers", worker_traffic(*worker_, served_, steps)}};
  }

 private:
  ServedJob& served_;
  comm::rpc::Endpoint& endpoint_;
  data_parallel::ServedWorker* worker_ = nullptr;  // the replica's
  bool open_ = false;
};

/// This rank's training beside servers.
Ending train_served(ServedJob& job, comm::rpc::Endpoint& endpoint, comm::Session& workers) {
  comm::GridOptions options = grid_options(job.config);
  // No tensor passes between workers: NCCL's memory would be for nothing.
  if (!job.computes.on_host() && options.comm.data == "auto") options.comm.data = "mpi";
  comm::Grid grid(workers, job.plan.shape, job.ledger, job.plan.shard, options);
  job.computes.note_free_bytes("with_groups");
  ServedMethod method(job, grid, endpoint);
  Trainer trainer(job, grid, method);
  try {
    return trainer.run();
  } catch (const AgreedError& error) {
    // All workers leave in order, and so are the servers to; after another error the job is ended
    // at once.
    method.end(error.what());
    throw;
  }
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

ServedJob::ServedJob(comm::Session& ranks, RunConfig& settled, const config::Fields& fields,
                     const DeviceSource& devices)
    : Job(ranks, settled, fields, devices),
      everyone(comm::make_mpi_communicator(session.world(), ledger)),
      stage(model, worker_options(config, plan)),
      place({.workers = plan.shape.of(comm::Axis::data),
             .servers = server_ranks(config),
             .gradients = dtype_from_name(config.data_parallel.gradients)}) {
  if (serves()) place.index = session.rank() - first_server();
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

MemoryPrediction predict_served(const std::map<device::Use, std::int64_t>& bytes, bool host) {
  MemoryPrediction prediction{bytes, {}};
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    if (!plan::predicts_all(use, host, true)) prediction.in_part.insert(use);
  }
  return prediction;
}

json server_account(const ServedJob& job, const data_parallel::ServerShards& shards,
                    const MemoryPrediction& predicted, std::int64_t sent, double steps) {
  // What it sends to each worker in a step.
  const auto values = static_cast<double>(size_of(shards.state().options().shares.compute) *
                                          static_cast<std::size_t>(job.place.workers)) *
                      static_cast<double>(shards.held());
  return {{"rank", job.session.rank()},
          {"tensor", 0},
          {"pipeline", 0},
          {"data", 0},
          {"server", job.place.index},
          {"sections", job.recorder.seconds()},
          {"time", report::rank_time(job.recorder)},
          {"communication",
           {{"servers",
             {{"bytes_per_step", static_cast<double>(sent) / steps},
              {"seconds_per_step", 0.0},
              {"least_bytes_per_step", values}}}}},
          {"memory", memory_account(predicted, job.ledger)}};
}

json worker_traffic(const data_parallel::ServerLink& link, const ServedJob& job,
                    std::int64_t steps) {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, steps));
  const auto model = static_cast<double>(job.model.table().elements());
  const DType compute = job.stage.options().compute;
  return {{"bytes_per_step", static_cast<double>(link.sent()) / count},
          {"received_per_step", static_cast<double>(link.received()) / count},
          {"seconds_per_step", link.seconds() / count},
          {"least_bytes_per_step", model * static_cast<double>(size_of(job.place.gradients))},
          {"least_received_per_step", model * static_cast<double>(size_of(compute))}};
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

Ending run_served(comm::Session& session, RunConfig& config, const config::Fields& fields,
                  const DeviceSource& devices) {
  ServedJob job(session, config, fields, devices);
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
    ending = train_served(job, endpoint, side.session());
    endpoint.close();
  }
  return ending;
}

}  // namespace trireme::train
