#include "async.hpp"

#include <atomic>
#include <cstdio>
#include <exception>

#include <unistd.h>

#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/train/config.hpp"

#include "conductor.hpp"

namespace trireme::data_parallel {

using namespace train;
using nlohmann::json;

namespace {

std::vector<int> range(int first, int end) {
  std::vector<int> ranks;
  for (int rank = first; rank < end; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace

Starting::Starting(comm::Session& session, double heartbeat)
    : session_(session),
      beats_(session.world(),
             {.peers = range(0, session.rank() == 0 ? session.size() : 1),
              .silence = heartbeat,
              .on_lost = [this](int rank, const std::string& why) { lose(rank, why); }}) {
  beats_.start();
}

Starting::~Starting() {
  if (over_.exchange(true)) return;
  for (int rank = 0; rank < beats_.size(); ++rank) beats_.lose(rank, "not waited for");
}

void Starting::end() {
  over_ = true;
  beats_.close(1);
}

void Starting::lose(int rank, const std::string& why) {
  if (over_) return;
  if (session_.claim_reporting()) {
    fmt::print(stderr,
               "trireme: error: rank {} is lost while the job starts: {}; look there for its last "
               "words\n",
               rank, why);
  } else {
    ::sleep(1);  // another rank of this node is about to print
  }
  session_.abort(1);
}

namespace {

/// One parameter server of the job.
class AsyncHost {
 public:
  AsyncHost(AsyncJob& job, comm::Session& servers, comm::rpc::Endpoint& endpoint, WorkQueue& queue)
      : job_(job),
        endpoint_(endpoint),
        queue_(queue),
        host_(job, servers),
        server_(host_.shards(), endpoint, queue) {
    if (first()) {
      conductor_ = std::make_unique<Conductor>(
          job, endpoint, queue,
          [this](const checkpoint::State& state) { return save_with_all(state); });
      return;
    }
    interruption_ = std::make_unique<Interruption>(job, endpoint);
    endpoint.serve(messages::save,
                   [this](comm::rpc::Call<messages::Nothing> call, messages::Nothing) {
                     const auto text = std::make_shared<std::vector<std::byte>>(call.bulk_bytes());
                     call.receive(*text, [this, text](comm::rpc::Call<messages::Nothing> whole) {
                       queue_.post({"checkpoint", [this, text, whole]() mutable {
                                      save(state_of(*text));
                                      whole.reply({});
                                    }});
                     });
                   });
    endpoint.serve(messages::leave, [this](comm::rpc::Call<std::string> call, messages::Nothing) {
      queue_.post({"leave", [this, call]() mutable {
                     call.reply(account().dump());
                     left_ = true;
                   }});
    });
  }

  /// Ends the service of calls first, which work on what is destroyed here; at once, unless leave()
  /// did.
  ~AsyncHost() {
    leaving_ = true;
    if (std::uncaught_exceptions() > 0) {
      // The workers will learn that this server has left, but not why. Other servers wait for it
      // in many places: they must find it silent, and end the job.
      job_.session.reserve_reporting();
      for (int s = 0; s < job_.place.servers; ++s) {
        if (s != job_.place.index) endpoint_.lose(job_.first_server() + s, "not waited for");
      }
    }
    endpoint_.close(0);
  }
  AsyncHost(const AsyncHost&) = delete;
  AsyncHost& operator=(const AsyncHost&) = delete;

  /// Before the endpoint starts.
  void begin(const Beginning& beginning) {
    const ResumePoint& point = beginning.point;
    if (point.folder.empty()) host_.initialize();
    const int workers = job_.place.workers;
    const std::int64_t updates = point.position.step - point.position.states_begin;
    server_.set_options(
        {.first_update = updates * workers,
         .inverse_rate = select<bool>("server.staleness_rate", job_.config.server.staleness_rate,
                                      {{"none", false}, {"inverse", true}}),
         .most_stale = Tickets::most_stale(workers, job_.config.server.max_staleness)});
    if (conductor_) conductor_->begin(beginning);
  }
  void load(const checkpoint::Reader& reader, std::vector<std::string>& notes) {
    host_.load(reader);
    if (conductor_) conductor_->load(reader, notes);
  }

  /// A rank has died. On the service thread.
  void lose(int rank, const std::string& why) {
    if (leaving_) return;
    if (rank < job_.first_server()) {
      queue_.post({"leave", [this, rank, why] {
                     if (conductor_) conductor_->lose(rank, why);
                   }});
      return;
    }
    // At once: the servers may be in the midst of what is collective over them.
    if (job_.session.claim_reporting()) {
      fmt::print(stderr,
                 "trireme: error: server rank {} is lost: {}: its part of the model is gone; start "
                 "again from the last checkpoint\n",
                 rank, why);
    }
    job_.session.abort(1);
  }
  /// In order, when all is done.
  void leave() {
    leaving_ = true;
    endpoint_.close();
  }

  Ending run() {
    job_.recorder.reset();
    if (!conductor_) {
      while (!left_) {
        queue_.turn(1, job_.recorder);
        interruption_->notify();
      }
      return Ending::done;
    }
    try {
      const Ending ending = conductor_->run();
      std::vector<json> accounts{account()};
      for (int s = 1; s < job_.place.servers; ++s) {
        accounts.push_back(
            json::parse(endpoint_.call(messages::leave, job_.first_server() + s, {}).get()));
      }
      conductor_->finish(accounts, server_.counts());
      return ending;
    } catch (const std::exception& error) {
      conductor_->record_failure(error.what());
      throw;
    }
  }

 private:
  bool first() const { return job_.place.index == 0; }

  std::string save(const checkpoint::State& state) {
    try {
      return host_.save(state);
    } catch (const AgreedError& error) {
      if (first()) throw;
      return {};  // the first server reports it
    }
  }

  std::string save_with_all(const checkpoint::State& state) {
    const std::string text = to_text(state);
    std::vector<comm::rpc::Future<messages::Nothing>> others;
    for (int s = 1; s < job_.place.servers; ++s) {
      others.push_back(endpoint_.call(messages::save, job_.first_server() + s, {},
                                      std::as_bytes(std::span(text))));
    }
    std::exception_ptr error;
    std::string folder;
    try {
      folder = save(state);
    } catch (const AgreedError&) {
      error = std::current_exception();
    }
    for (const auto& other : others) other.get();
    if (error) std::rethrow_exception(error);
    return folder;
  }

  json account() const {
    const AsyncServer::Counts& counts = server_.counts();
    // A step has an update of each worker.
    const double steps = static_cast<double>(std::max<std::int64_t>(1, counts.updates)) /
                         static_cast<double>(job_.place.workers);
    json account = host_.account(counts.sent, steps);
    account["resident_peak"] = resident_peak();
    return account;
  }

  AsyncJob& job_;
  comm::rpc::Endpoint& endpoint_;
  WorkQueue& queue_;
  ShardHost host_;
  AsyncServer server_;
  std::unique_ptr<Conductor> conductor_;        // of the first
  std::unique_ptr<Interruption> interruption_;  // of the others
  std::atomic<bool> leaving_ = false;
  bool left_ = false;
};

/// Finds and reads the checkpoint to continue from, on the servers (`host`). Collective over all
/// ranks, which all learn which ones were `passed_over`.
ResumePoint find_beginning(AsyncJob& job, AsyncHost* host, std::vector<std::string>& passed_over) {
  ResumePoint point;
  const std::string folder = find_resume(job.config, *job.everyone, passed_over);
  // Rank 0 has looked for it, and the first server prints.
  passed_over = json::parse(comm::of_rank_zero(*job.everyone, [&] {
                  return json(passed_over).dump();
                })).get<std::vector<std::string>>();
  if (folder.empty()) return point;
  load_newest(
      job.config, *job.everyone, folder,
      [&](const checkpoint::Reader& reader) {
        point = resume_point(job.config, reader);
        if (host != nullptr) host->load(reader, point.notes);
      },
      [&](const std::string& line) { passed_over.push_back(line); }, nullptr);
  return point;
}

Ending serve_async(AsyncJob& job, comm::rpc::Endpoint& endpoint, WorkQueue& queue,
                   const std::function<void(AsyncHost*)>& show) {
  const auto side = side_of(job, true);
  AsyncHost host(job, *side, endpoint, queue);
  show(&host);
  Beginning beginning;
  beginning.environment = probe_environment(job, *job.everyone, job.first_server());
  job.lock_output(*job.everyone, job.first_server());
  beginning.point = find_beginning(job, &host, beginning.passed_over);
  // The workers', who measure meanwhile.
  beginning.peak = agree_on_peak(job.config, *job.everyone, job.place.workers, nullptr);
  beginning.predicted_memory = json::parse(comm::of_rank_zero(*job.everyone, [] { return ""; }));
  host.begin(beginning);
  queue.watch(job.watchdog);
  endpoint.start();
  job.begin_watch();
  const Ending ending = host.run();
  host.leave();
  show(nullptr);
  if (job.config.server.tolerate_failures) side->abandon();
  return ending;
}

}  // namespace

Interruption::Interruption(AsyncJob& job, comm::rpc::Endpoint& endpoint)
    : signals_(parse_signals(job.config.train.signals)),
      endpoint_(endpoint),
      first_server_(job.first_server()) {}

void Interruption::notify() {
  const int signal = signals_.caught();
  if (signal == 0 || std::exchange(notified_, true)) return;
  static_cast<void>(endpoint_.call(messages::interrupt, first_server_, signal));
}

Ending run_async(comm::Session& session, RunConfig& config, const config::Fields& fields,
                 const DeviceSource& devices) {
  Starting start(session, config.server.heartbeat);
  AsyncJob job(session, config, fields, devices, start);
  AsyncHost* host = nullptr;
  // Workers and servers watch each other, and servers themselves.
  comm::rpc::Options options{.peers = range(job.serves() ? 0 : job.first_server(), session.size()),
                             .silence = config.server.heartbeat,
                             .on_lost = {}};
  if (job.serves()) {
    options.on_lost = [&host](int rank, const std::string& why) {
      if (host != nullptr) host->lose(rank, why);
    };
  }
  comm::rpc::Endpoint endpoint(session.world(), options);
  WorkQueue queue;
  // From here on the world may lose ranks, and its end must not wait for them.
  if (config.server.tolerate_failures) session.abandon();
  if (job.serves()) {
    return serve_async(job, endpoint, queue, [&](AsyncHost* own) { host = own; });
  }

  side_of(job, true);  // collective with the servers
  probe_environment(job, *job.everyone, job.first_server());
  job.lock_output(*job.everyone, job.first_server());
  std::vector<std::string> passed_over;
  find_beginning(job, nullptr, passed_over);
  Ending ending = Ending::cut_off;
  // Servers must find this rank silent, not disconnected: it has a ticket, which others may take
  // over.
  const auto fall_silent = [&](const std::string& why) {
    for (int s = 0; s < job.place.servers; ++s) endpoint.lose(job.first_server() + s, why);
  };
  try {
    ending = work_async(job, endpoint);
  } catch (const std::exception& error) {
    fall_silent(error.what());
    // A server has left, or ends with an error.
    const bool servers = dynamic_cast<const comm::rpc::PeerLost*>(&error) != nullptr ||
                         dynamic_cast<const comm::rpc::RemoteError*>(&error) != nullptr;
    if (!job.may_lose_a_worker()) {
      if (servers) ::sleep(1);  // it knows why, and reports it first
      throw;
    }
    // The others may continue without this rank: it must neither end the job nor claim the
    // reporting of its node.
    fmt::print(
        stderr, "trireme: {}\n",
        config::one_line(
            servers ? fmt::format("warning: rank {} leaves: {}", session.rank(), error.what())
                    : fmt::format("error: rank {}: {}", session.rank(), error.what())));
  }
  endpoint.close();
  return ending;
}

}  // namespace trireme::data_parallel
