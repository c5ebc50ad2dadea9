// A job whose last ranks are parameter servers.
#pragma once

#include <memory>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/rpc.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/data_parallel/served_worker.hpp"
#include "trireme/model/transformer.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/train/compute_device.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

/// What ranks find out together before anything else: the same on all.
struct Environment {
  nlohmann::json provenance;
  std::string shared_cores;  // a warning; mostly empty
};
/// Collective over all ranks of the job; throws AgreedError where they do not compute alike.
Environment probe_environment(const comm::Session& session, comm::Communicator& everyone,
                              int threads);

/// What a worker's Trainer knows of the servers. While `open`, they wait for what worker 0 tells
/// them, and must be told when the job ends.
struct Servers {
  comm::Session& session;  // all ranks of the job
  comm::Communicator& everyone;
  comm::rpc::Endpoint& endpoint;
  data_parallel::ServerPlace place;
  data_parallel::ServedWorker* worker = nullptr;  // this rank's link to them, once there is one
  bool open = false;
};

/// The names of what servers do between steps, see messages::work.
inline constexpr const char* save_work = "save";
inline constexpr const char* load_work = "load";

/// A checkpoint's state as text for servers, which save it, and back. Throws Error.
std::string to_text(const checkpoint::State& state);
checkpoint::State state_of(std::span<const std::byte> text);

/// Writes what the servers hold as a checkpoint of the run folder; returns its folder. Collective
/// over them; throws what checkpoint::save throws. `nodes`: of the servers.
std::string save_shards(data_parallel::ServerShards& shards, const RunConfig& config,
                        const checkpoint::State& state, comm::Communicator& servers,
                        const std::vector<int>& nodes);
/// Fills a server's shards from a checkpoint of any layout; throws what its reader throws.
void load_shards(data_parallel::ServerShards& shards, const checkpoint::Reader& reader);
/// A rank's memory by use for its account: {"predicted", "measured"}, and "in_part" where the
/// prediction is not of all of it (plan::predicts_all).
nlohmann::json memory_account(const std::map<device::Use, std::int64_t>& predicted,
                              const device::MemoryLedger& ledger);

/// What a server holds of a job's memory, in the words of the closing table.
inline constexpr const char* server_memory_prefix = "server ";

/// What every rank of a job with servers knows before it starts.
struct ServedJob {
  /// Refuses what servers cannot be combined with before a device is looked for, then settles
  /// device, layout and precision and checks the whole configuration. Collective over all ranks;
  /// throws AgreedError. Session and configuration must outlive it.
  ServedJob(comm::Session& session, RunConfig& config, const DeviceSource& devices);

  int first_server() const { return place.workers; }
  bool serves() const { return session.rank() >= first_server(); }

  comm::Session& session;  // all ranks
  const RunConfig& config;
  ComputeDevice computes;
  device::MemoryLedger ledger;
  GridPlan plan;
  std::unique_ptr<comm::Communicator> everyone;
  model::Transformer model;
  parallel::Stage stage;  // of a worker
  data_parallel::ServerPlace place;
  int threads;  // of this rank
};

/// train::run for a configuration with servers.
Ending run_served(comm::Session& session, RunConfig& config, const config::Fields& fields,
                  const DeviceSource& devices);

}  // namespace trireme::train
