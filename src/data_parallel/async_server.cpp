#include "trireme/data_parallel/async_server.hpp"

#include <utility>

#include "trireme/data_parallel/server_messages.hpp"

namespace trireme::data_parallel {

using messages::bytes_of;

namespace {

/// An error ends the run on this side, and the caller gets its text.
template <class Call, class Run>
void or_fail(Call& call, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    call.fail(error.what());
    throw;
  }
}

}  // namespace

AsyncServer::AsyncServer(ServerShards& shards, comm::rpc::Endpoint& endpoint, WorkQueue& queue)
    : shards_(shards), queue_(queue) {
  endpoint.serve(async::push, [this](Call<Nothing> call, const async::GroupOfTicket& request) {
    take_gradients(std::move(call), request);
  });
  endpoint.serve(async::commit, [this](Call<std::int64_t> call, const async::Commit& commit) {
    take_commit(std::move(call), commit);
  });
  endpoint.serve(async::pull, [this](Call<std::int64_t> call, const std::int64_t& group) {
    take_pull(std::move(call), group);
  });
}

void AsyncServer::take_gradients(Call<Nothing> call, const async::GroupOfTicket& request) {
  const int worker = call.caller();
  const auto group = static_cast<int>(request.group);
  const Tensor slot = shards_.slot_for(worker, request.group, call.bulk_bytes());
  // Before anything is received: what came first must stay as it is until it is used.
  Sender& sender = senders_[worker];
  if (request.ticket == sender.committed) {
    throw Error("a gradient of ticket {}, which worker {} has committed", request.ticket, worker);
  }
  if (sender.ticket >= 0 && request.ticket != sender.ticket) {
    throw Error("a gradient of ticket {} while worker {} sends those of ticket {}", request.ticket,
                worker, sender.ticket);
  }
  if (!sender.groups.insert(request.group).second) {
    throw Error("a second gradient of group {} for ticket {}", request.group, request.ticket);
  }
  sender.ticket = request.ticket;
  call.receive(bytes_of(slot), [this, worker, group](Call<Nothing> whole) {
    // On the same thread as the commit that follows, whose own work clears it again.
    queue_.post({"take gradients", [this, worker, group, whole]() mutable {
                   or_fail(whole, [&] {
                     shards_.arrived(worker, group);
                     whole.reply({});
                   });
                 }});
  });
}

void AsyncServer::take_commit(Call<std::int64_t> call, const async::Commit& commit) {
  const int worker = call.caller();
  shards_.check_worker(worker);
  Sender& sender = senders_[worker];
  if (commit.ticket != sender.ticket) {
    throw Error("a commit of ticket {}, of which worker {} has sent nothing", commit.ticket,
                worker);
  }
  sender = {.committed = commit.ticket};
  queue_.post({"optimizer",
               [this, worker, commit, call = std::move(call)]() mutable {
                 or_fail(call, [&] { call.reply(update(worker, commit)); });
               },
               true});
}

void AsyncServer::take_pull(Call<std::int64_t> call, std::int64_t group) {
  shards_.values_for(call.caller(), group, call.room());
  const auto g = static_cast<int>(group);
  queue_.post({"send the model", [this, g, call = std::move(call)]() mutable {
                 const Tensor values = shards_.values(g);
                 counts_.sent += static_cast<std::int64_t>(values.bytes());
                 queue_.begin_reading();
                 call.reply(counts_.updates, bytes_of(values), [this] { queue_.end_reading(); });
               }});
}

std::int64_t AsyncServer::update(int worker, const async::Commit& commit) {
  shards_.require_all_of(worker);
  const bool repeated = done_.contains(commit.ticket);
  if (repeated || commit.use == 0) {
    shards_.drop(worker);
    if (repeated) ++counts_.repeated;
    return 0;
  }
  const std::int64_t staleness = counts_.updates - commit.version;
  if (staleness < 0 || staleness > options_.most_stale) {
    throw Error(
        "ticket {}: a gradient of worker {} is {} updates old: server.max_staleness allows {}",
        commit.ticket, worker, staleness, options_.most_stale);
  }
  const double rate = options_.inverse_rate
                          ? commit.learning_rate / static_cast<double>(1 + staleness)
                          : commit.learning_rate;
  shards_.update_from(worker, rate, options_.first_update + counts_.updates, commit.gradient_scale);
  done_.insert(commit.ticket);
  // No ticket is under way for longer than each worker in turn could hold it.
  done_.erase(done_.begin(), done_.lower_bound(commit.ticket - shards_.place().workers *
                                                                   (options_.most_stale + 1)));
  ++counts_.updates;
  ++counts_.by_staleness[staleness];
  return staleness;
}

}  // namespace trireme::data_parallel
