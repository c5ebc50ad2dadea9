// A job whose last ranks are parameter servers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/data_parallel/server_link.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/train/account.hpp"
#include "trireme/train/job.hpp"

namespace trireme::train {

/// What every rank of such a job knows before it starts.
struct ServedJob : Job {
  /// As Job. Collective over all ranks; throws AgreedError.
  ServedJob(comm::Session& ranks, RunConfig& settled, const config::Fields& fields,
            const DeviceSource& devices);

  int first_server() const { return place.workers; }
  bool serves() const { return session.rank() >= first_server(); }

  std::unique_ptr<comm::Communicator> everyone;
  parallel::Stage stage;  // of a worker
  data_parallel::ServerPlace place;
};

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

/// What this rank of a job with servers holds, by use.
MemoryPrediction predict_served(const std::map<device::Use, std::int64_t>& bytes, bool host);
/// The account of a server which has sent `sent` bytes of the model in so many steps.
nlohmann::json server_account(const ServedJob& job, const data_parallel::ServerShards& shards,
                              const MemoryPrediction& predicted, std::int64_t sent, double steps);
/// Of a worker's messages with servers, in so many steps.
nlohmann::json worker_traffic(const data_parallel::ServerLink& link, const ServedJob& job,
                              std::int64_t steps);

/// train::run for a configuration with servers that wait for all workers.
Ending run_served(comm::Session& session, RunConfig& config, const config::Fields& fields,
                  const DeviceSource& devices);

}  // namespace trireme::train
