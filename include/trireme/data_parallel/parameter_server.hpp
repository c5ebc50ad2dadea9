// A parameter server's side of training, whether workers keep step or not. Each takes messages on
// the endpoint's thread and works on another one, through a queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/data_parallel/server_messages.hpp"
#include "trireme/data_parallel/server_shards.hpp"

namespace trireme::data_parallel {

/// Work that the endpoint's thread posts and another thread does, in order. What it throws reaches
/// the thread that does it.
class WorkQueue {
 public:
  struct Item {
    const char* name = "";  // of the recorder's section
    std::function<void()> run;
    bool waits_for_readers = false;  // changes the model
  };
  /// `waiting`: section of the time without work; null: it is not recorded.
  explicit WorkQueue(const char* waiting = nullptr) : waiting_(waiting) {}
  void post(Item item);
  /// A reply that reads the model is on its way, or has gone.
  void begin_reading();
  void end_reading();
  /// Gives it a beat for every item from now on; while it waits the rank is not watched.
  void watch(comm::Watchdog& watchdog) { watchdog_ = &watchdog; }
  /// Does what there is, or waits `seconds` for something; false where nothing came.
  bool turn(double seconds, Recorder& recorder);

 private:
  const char* waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  int readers_ = 0;
  comm::Watchdog* watchdog_ = nullptr;
};

/// In synchronous steps: gradients are added group by group as they come, while workers compute.
class ParameterServer {
 public:
  /// Jobs that worker 0 may ask for between steps, by name; the reply has what they throw. All
  /// servers are asked for the same in the same order, so that jobs may be collective over them.
  using Job = std::function<std::string(std::span<const std::byte> text)>;
  struct Options {
    std::map<std::string, Job> jobs;
    std::function<int()> signal;         // caught on this rank; absent: none ever is
    comm::Watchdog* watchdog = nullptr;  // gets a beat for every work, where there is one
  };
  /// `servers`: their group, in which work is collective; calls come from the first ranks of
  /// `endpoint`, which must not have started yet. All of them must outlive this.
  ParameterServer(ServerShards& shards, comm::rpc::Endpoint& endpoint, comm::Communicator& servers,
                  Recorder& recorder, Options options);
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;
  /// Closes the endpoint, whose calls end here.
  ~ParameterServer() { endpoint_.close(0); }

  /// Serves until worker 0 ends the job, and returns its text; see messages::end. Throws what work
  /// throws.
  std::string serve();
  /// Steps that were served, skipped ones too.
  std::int64_t steps() const { return step_; }
  /// Bytes of the model that were sent to workers after these steps.
  std::int64_t sent() const { return sent_; }

 private:
  template <class Reply>
  using Call = comm::rpc::Call<Reply>;
  using Nothing = comm::rpc::Nothing;
  struct Pull {
    Call<std::int64_t> call;
    int group = 0;
  };
  using Lock = std::lock_guard<std::mutex>;

  void take_gradients(Call<Nothing> call, const messages::GroupOf& request);
  void take_question(Call<messages::NormOfStep> call, std::int64_t step);
  void take_settlement(Call<Nothing> call, const messages::Settlement& settlement);
  void take_pull(Call<std::int64_t> call, const messages::GroupOf& request);
  void take_work(Call<std::string> call, const std::string& name);
  void add(int group);
  void finish_step();
  void answer(Pull pull);

  ServerShards& shards_;
  comm::rpc::Endpoint& endpoint_;
  comm::Communicator& servers_;
  Recorder& recorder_;
  Options options_;

  WorkQueue queue_{"wait for workers"};
  std::optional<std::string> ended_;  // set and read by the thread that serves
  std::mutex mutex_;  // guards all that follows, and which of the shards' gradients have come
  std::int64_t step_ = 0, sent_ = 0;
  std::optional<double> norm_;  // of the step, once it is known
  std::vector<Call<messages::NormOfStep>> questions_;
  std::vector<Call<Nothing>> settled_;
  messages::Settlement settlement_;
  std::vector<Pull> pulls_;  // of the model after this step
};

/// Where workers push and pull when they are ready. Dean et al., "Large Scale Distributed Deep
/// Networks" (2012).
class AsyncServer {
 public:
  /// How updates came about.
  struct Counts {
    std::int64_t updates = 0;
    std::int64_t repeated = 0;  // commits that another worker had made before
    std::map<std::int64_t, std::int64_t> by_staleness;  // updates
    std::int64_t sent = 0;                              // bytes of the model
  };
  struct Options {
    std::int64_t first_update = 0;  // of this start: what the optimizer counts on from
    bool inverse_rate = false;      // the learning rate over 1 + staleness
    std::int64_t most_stale = 0;    // an update that is staler is an error
  };
  /// Calls come from the first ranks of `endpoint`, which must not have started yet.
  AsyncServer(ServerShards& shards, comm::rpc::Endpoint& endpoint, WorkQueue& queue);
  AsyncServer(const AsyncServer&) = delete;
  AsyncServer& operator=(const AsyncServer&) = delete;
  /// Before the endpoint starts.
  void set_options(const Options& options) { options_ = options; }
  /// By the thread that does the work, or when nobody does any.
  const Counts& counts() const { return counts_; }

 private:
  template <class Reply>
  using Call = comm::rpc::Call<Reply>;
  using Nothing = comm::rpc::Nothing;
  void take_gradients(Call<Nothing> call, const messages::GroupOf& request);
  void take_commit(Call<Nothing> call, const messages::Commit& commit);
  void take_pull(Call<std::int64_t> call, const messages::GroupOf& request);
  void update(int worker, const messages::Commit& commit);

  /// What a worker has sent since its last commit: a gradient that is lost, doubled or late is
  /// refused, so that each counts once.
  struct Sender {
    std::int64_t ticket = -1;         // of the gradients that come; −1: none has
    std::int64_t committed = -1;      // the last one
    std::set<std::int64_t> groups{};  // that have begun to come
  };

  ServerShards& shards_;
  WorkQueue& queue_;
  std::map<int, Sender> senders_;  // the service thread's
  Options options_;
  Counts counts_;
  std::set<std::int64_t> done_;  // tickets
};

}  // namespace trireme::data_parallel
