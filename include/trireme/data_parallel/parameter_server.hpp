// A parameter server's side of synchronous steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/watchdog.hpp"
#include "trireme/core/recorder.hpp"
#include "trireme/data_parallel/server_messages.hpp"
#include "trireme/data_parallel/server_shards.hpp"
#include "trireme/data_parallel/work_queue.hpp"

namespace trireme::data_parallel {

/// Takes messages on the endpoint's thread and works on the one that calls serve(): gradients are
/// added group by group as they come, while workers compute.
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
  ~ParameterServer();

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
    Call<Nothing> call;
    int group = 0;
  };
  using Lock = std::lock_guard<std::mutex>;

  void take_gradients(Call<Nothing> call, const messages::GroupOfStep& request);
  void take_question(Call<messages::NormOfStep> call, std::int64_t step);
  void take_settlement(Call<Nothing> call, const messages::Settlement& settlement);
  void take_pull(Call<Nothing> call, const messages::GroupOfStep& request);
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

}  // namespace trireme::data_parallel
