#include "served.hpp"

#include <algorithm>

#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/data_parallel/memory.hpp"
#include "trireme/data_parallel/parameter_server.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::data_parallel {

using namespace train;
using nlohmann::json;

namespace {

/// The names of what servers do between steps, see messages::work.
constexpr const char* save_work = "save";
constexpr const char* load_work = "load";

/// One parameter server, until the workers end the job.
Ending serve(ServedJob& job, comm::Session& servers, comm::rpc::Endpoint& endpoint) {
  ShardHost host(job, servers);
  const SignalWatch signals(parse_signals(job.config.train.signals));
  const auto load = [&](std::span<const std::byte> folder) {
    const auto* text = reinterpret_cast<const char*>(folder.data());
    host.load(checkpoint::Reader(std::string(text, folder.size())));
    return std::string();
  };
  ParameterServer service(
      host.shards(), endpoint, host.group(), job.recorder,
      {.jobs = {{save_work, [&](auto text) { return host.save(state_of(text)); }},
                {load_work, load}},
       .signal = [&] { return signals.caught(); },
       .watchdog = &job.watchdog});
  host.initialize();
  probe_environment(job, *job.everyone);
  job.lock_output(*job.everyone);
  job.recorder.reset();
  job.starting.reset();
  const std::string end = service.serve();
  if (!end.empty()) throw AgreedError(end);
  const comm::Watchdog::Pause unwatched(job.watchdog);
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, service.steps()));
  const json account = host.account(service.sent(), steps);
  const Ending ending = close_job(*job.everyone, job.recorder, account, Ending::done).ending;
  endpoint.close();  // in order, before the service ends it at once
  return ending;
}

/// The workers' side: servers hold the model, and every step waits for all workers.
class ServedMethod final : public Method {
 public:
  ServedMethod(ServedJob& job, comm::Grid& grid, comm::rpc::Endpoint& endpoint)
      : Method(job, grid), served_(job), endpoint_(endpoint) {}

  void configure(parallel::ReplicaOptions& options) override {
    options.make_method = make_worker(served_, endpoint_, worker_);
  }
  void configure(plan::MemoryQuestion& question) const override {
    add_method_memory(question, job_.config, replica().stage(), served_.place);
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
    const ServerPlace& place = served_.place;
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
  ServedWorker* worker_ = nullptr;  // the replica's
  bool open_ = false;
};

/// This rank's training beside servers.
Ending train_served(ServedJob& job, comm::Session& workers, comm::rpc::Endpoint& endpoint) {
  comm::GridOptions options = grid_options(job.config);
  // No tensor passes between workers: NCCL's memory would be for nothing.
  if (!job.computes.on_host() && options.comm.data == "auto") options.comm.data = "mpi";
  comm::Grid grid(workers, job.plan.shape, job.ledger, options);
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
    options.place = {.data = plan.shape.of(comm::Axis::data), .shard = plan.shape.shard_size()};
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

MemoryPrediction ServedJob::prediction(const std::map<device::Use, std::int64_t>& bytes) const {
  MemoryPrediction prediction{bytes, {}};
  for (int u = 0; u < static_cast<int>(device::Use::count); ++u) {
    const auto use = static_cast<device::Use>(u);
    if (!plan::predicts_all(use, ledger.device().is_host(), true)) prediction.in_part.insert(use);
  }
  return prediction;
}

std::unique_ptr<comm::Session> side_of(const ServedJob& job, bool servers_only) {
  MPI_Comm comm = MPI_COMM_NULL;  // until MPI's end: its freeing would be collective
  const int color = job.serves() ? 1 : servers_only ? MPI_UNDEFINED : 0;
  comm::mpi_check(MPI_Comm_split(job.session.world(), color, job.session.rank(), &comm),
                  "MPI_Comm_split");
  return comm == MPI_COMM_NULL ? nullptr : std::make_unique<comm::Session>(comm);
}

ShardHost::ShardHost(ServedJob& job, comm::Session& servers)
    : job_(job),
      servers_(servers),
      predicted_(job.prediction(predict_server_memory(job.stage, job.place, job.config))),
      group_(comm::make_mpi_communicator(servers.world(), job.ledger)),
      shards_(job.stage, job.place, job.config.optim, job.threads, job.ledger) {}

void ShardHost::initialize() {
  shards_.initialize(static_cast<std::uint64_t>(job_.config.train.seed));
}

std::string ShardHost::save(const checkpoint::State& state) {
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  std::vector<checkpoint::Piece> pieces;
  const state::ModelState& held = shards_.state();
  const checkpoint::Writers writers{job_.place.index, job_.place.servers};
  checkpoint::append_pieces(pieces, "parameters", held, held.parameters(), true, writers);
  for (const auto& kept : shards_.optimizer().states()) {
    checkpoint::append_pieces(pieces, kept.name, held, kept.flat, true, writers);
  }
  const checkpoint::FileLayout files = job_.files(servers_);
  return checkpoint::save(job_.config.train.output, state, pieces, *group_, files).string();
}

void ShardHost::load(const checkpoint::Reader& reader) {
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  const state::ModelState& state = shards_.state();
  checkpoint::load_pieces(reader, "parameters", state, state.parameters(), true);
  for (const auto& kept : shards_.optimizer().states()) {
    load_optimizer(reader, kept.name, state, kept.flat, true);
  }
  shards_.refresh();
}

json ShardHost::account(std::int64_t sent, double steps) const {
  // What it sends to each worker in a step.
  const auto values = static_cast<double>(size_of(shards_.state().options().shares.compute) *
                                          static_cast<std::size_t>(job_.place.workers)) *
                      static_cast<double>(shards_.held());
  return {{"rank", job_.session.rank()},
          {"host", report::host_name()},
          {"tensor", 0},
          {"pipeline", 0},
          {"data", 0},
          {"server", job_.place.index},
          {"sections", job_.recorder.seconds()},
          {"time", report::rank_time(job_.recorder)},
          {"communication",
           {{"servers",
             {{"bytes_per_step", static_cast<double>(sent) / steps},
              {"seconds_per_step", 0.0},
              {"least_bytes_per_step", values}}}}},
          {"memory", memory_account(predicted_, job_.ledger)}};
}

json worker_traffic(const ServerLink& link, const ServedJob& job, std::int64_t steps) {
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
  const auto side = side_of(job, false);
  comm::rpc::Endpoint endpoint(session.world(), {});
  const Ending ending =
      job.serves() ? serve(job, *side, endpoint) : train_served(job, *side, endpoint);
  endpoint.close();
  return ending;
}

}  // namespace trireme::data_parallel
