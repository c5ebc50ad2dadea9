// A job whose last ranks are parameter servers.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/data_parallel/server_link.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/parallel/stage.hpp"
#include "trireme/train/account.hpp"
#include "trireme/train/job.hpp"

namespace trireme::data_parallel {

/// What every rank of such a job knows before it starts.
struct ServedJob : train::Job {
  /// As Job. Collective over all ranks; throws AgreedError.
  ServedJob(comm::Session& ranks, train::RunConfig& settled, const config::Fields& fields,
            const train::DeviceSource& devices);

  int first_server() const { return place.workers; }
  bool serves() const { return session.rank() >= first_server(); }
  /// With the uses of which the prediction knows a part, on workers' devices or on a server's host.
  train::MemoryPrediction prediction(const std::map<device::Use, std::int64_t>& bytes) const;

  std::unique_ptr<comm::Communicator> everyone;
  parallel::Stage stage;  // of a worker
  ServerPlace place;
};

/// What one parameter server holds, whether it waits for all workers or for none.
class ShardHost {
 public:
  /// `servers` are the ranks that serve. Both must outlive it.
  ShardHost(ServedJob& job, comm::Session& servers);

  ServerShards& shards() { return shards_; }
  const ServerShards& shards() const { return shards_; }
  comm::Communicator& group() { return *group_; }
  /// First values of a new run.
  void initialize();
  /// Writes what the servers hold as a checkpoint of the run folder; returns its folder. Collective
  /// over them; throws what checkpoint::save throws.
  std::string save(const checkpoint::State& state);
  /// Fills the shards from a checkpoint of any layout; throws what its reader throws.
  void load(const checkpoint::Reader& reader);
  /// For the record: `sent` bytes of the model in so many steps.
  nlohmann::json account(std::int64_t sent, double steps) const;

 private:
  ServedJob& job_;
  comm::Session& servers_;
  train::MemoryPrediction predicted_;
  std::unique_ptr<comm::Communicator> group_;
  ServerShards shards_;
};

/// The workers or the servers of a job, as a session of their own; null for the other side where
/// `servers_only`. Collective over the job.
std::unique_ptr<comm::Session> side_of(const ServedJob& job, bool servers_only);

/// Makes a rank's link to the servers, a ServerLink, and notes it in `link`.
template <class Worker>
parallel::MakeMethod make_worker(ServedJob& job, comm::rpc::Endpoint& endpoint, Worker*& link) {
  return [&](const parallel::Stage& stage, const state::ModelState& state, ops::Ops& ops,
             device::MemoryLedger& ledger) {
    auto worker = std::make_unique<Worker>(
        ServerLink::Parts{stage, state, ops, endpoint, job.recorder, job.place}, ledger);
    link = worker.get();
    return worker;
  };
}

/// A checkpoint's state as text for servers, which save it, and back. Throws Error.
std::string to_text(const checkpoint::State& state);
checkpoint::State state_of(std::span<const std::byte> text);

/// For the record: a worker's messages with servers in so many steps.
nlohmann::json worker_traffic(const ServerLink& link, const ServedJob& job, std::int64_t steps);

/// data_parallel::run for servers that wait for all workers.
train::Ending run_served(comm::Session& session, train::RunConfig& config,
                         const config::Fields& fields, const train::DeviceSource& devices);

}  // namespace trireme::data_parallel
