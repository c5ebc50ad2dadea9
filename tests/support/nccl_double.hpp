// A fake NCCL over MPI for simulated devices. Work of a communicator is queued and done later, in
// call order. A communicator stays in progress for a while after each call. Tests can inject
// faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "trireme/comm/nccl.hpp"

#include "support/simulated_device.hpp"

namespace trireme::testing_support {

class NcclDouble final : public comm::NcclApi {
 public:
  /// Collective over the world, as is the destructor. `ordered`: operations of all communicators
  /// start on the device in the order of their calls, as NCCL's from 2.26 on. `recent`: it splits
  /// communicators and registers memory.
  explicit NcclDouble(SimulatedDevice& device, bool ordered = false, bool recent = true)
      : device_(device), ordered_(ordered), recent_(recent) {
    MPI_Comm_dup(MPI_COMM_WORLD, &world_);
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &world_rank_);
  }
  ~NcclDouble() override {
    for (const auto& group : groups_) {
      while (*group->under_way > 0) std::this_thread::yield();
    }
    MPI_Comm_free(&world_);
  }

  // Controls for tests.
  /// The next call of that name gives `result` and does nothing.
  void refuse(const std::string& call, Result result) {
    const std::lock_guard lock(mutex_);
    refused_ = {call, result};
  }
  /// From now on every communicator has this error.
  void break_links(Result error) {
    const std::lock_guard lock(mutex_);
    broken_ = error;
  }
  /// From now on one operation at a time is on the device, and stays until its peers' have come: as
  /// on a GPU where others find no room beside it.
  void leave_room_for_one() {
    const std::lock_guard lock(mutex_);
    crowded_ = true;
  }
  /// The next operation stays in progress until it has been asked for `polls` times.
  void hold_next(int polls) {
    const std::lock_guard lock(mutex_);
    next_delay_ = polls;
  }
  int calls(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return calls_[name];
  }
  int alive() {  // communicators neither destroyed nor aborted
    const std::lock_guard lock(mutex_);
    return alive_;
  }

  std::string version() override { return "double"; }
  bool orders_launches() override { return ordered_; }
  bool splits() override { return recent_; }
  bool registers() override { return recent_; }
  std::string describe(Result result, Comm) override {
    return "NCCL's words for " + std::to_string(static_cast<int>(result));
  }

  Result get_unique_id(UniqueId& id) override {
    const std::lock_guard lock(mutex_);
    if (const Result result = count("get_unique_id"); result != Result::success) return result;
    const int words[2] = {world_rank_, sequence_++};
    id.fill(0);
    std::memcpy(id.data(), words, sizeof words);
    return Result::success;
  }
  Result init(Comm& comm, int size, const UniqueId& id, int rank) override {
    const std::lock_guard lock(mutex_);
    if (const Result result = count("init"); result != Result::success) return result;
    int words[2] = {};
    std::memcpy(words, id.data(), sizeof words);
    auto group = std::make_unique<Group>();
    group->tag = 2 * (512 * words[0] + words[1]);
    group->rank = rank;
    group->members.resize(static_cast<std::size_t>(size));
    exchange_members(*group, words[0]);
    group->delay = 3;
    comm = reinterpret_cast<Comm>(group.get());
    groups_.push_back(std::move(group));
    ++alive_;
    return Result::in_progress;
  }
  /// Every rank offers a number of its own; a new group's tag is made of that of its first rank.
  Result split(Comm comm, int color, int key, Comm& made) override {
    const std::lock_guard lock(mutex_);
    if (const Result result = count("split"); result != Result::success) return result;
    Group& parent = of(comm);
    if (parent.gone || parent.delay > 0 || *parent.under_way > 0) return Result::invalid_usage;
    std::vector<Offer> offers = exchange_offers(parent, {color, key, world_rank_, sequence_++});
    std::stable_sort(offers.begin(), offers.end(),
                     [](const Offer& one, const Offer& two) { return one.key < two.key; });
    parent.delay = 3;
    made = nullptr;
    if (color < 0) return Result::in_progress;
    auto group = std::make_unique<Group>();
    for (const Offer& offer : offers) {
      if (offer.color != color) continue;
      if (group->members.empty()) group->tag = 2 * (512 * offer.world_rank + offer.sequence);
      if (offer.world_rank == world_rank_) group->rank = group->size();
      group->members.push_back(offer.world_rank);
    }
    group->parent = &parent;
    group->aborted = parent.aborted;
    group->submitted = parent.submitted;
    group->done = parent.done;
    parent.made = {&made, reinterpret_cast<Comm>(group.get())};
    groups_.push_back(std::move(group));
    return Result::in_progress;
  }
  Result register_memory(Comm comm, void* data, std::size_t bytes, void*& registered) override {
    return call("register_memory", comm, [&](Group& group) {
      device_.real(static_cast<std::byte*>(data));  // of the device
      device_.note_registered(data, bytes);
      registered = &group.registered.emplace_back(data, bytes);
    });
  }
  Result deregister_memory(Comm comm, void* registered) override {
    return call("deregister_memory", comm, [&](Group& group) {
      if (*group.under_way > 0) ADD_FAILURE() << "memory is deregistered while it is used";
      const auto found = std::find_if(group.registered.begin(), group.registered.end(),
                                      [&](const auto& one) { return &one == registered; });
      if (found == group.registered.end()) {
        ADD_FAILURE() << "memory is deregistered twice";
        return;
      }
      device_.note_deregistered(found->first, found->second);
      group.registered.erase(found);
    });
  }
  Result async_error(Comm comm, Result& state) override {
    const std::lock_guard lock(mutex_);
    Group& group = of(comm);
    if (group.gone) return Result::invalid_argument;
    state = broken_;
    if (state != Result::success) return Result::success;
    if (group.delay > 0 && --group.delay == 0) hand_over(group);
    if (group.delay == 0 && group.made.first != nullptr) {
      const auto [to, made] = std::exchange(group.made, {});
      *to = made;
      ++group.children;
      ++alive_;
    }
    if (group.delay > 0 || (group.ending && *group.under_way > 0)) state = Result::in_progress;
    return Result::success;
  }
  Result finalize(Comm comm) override {
    return call("finalize", comm, [this](Group& group) {
      EXPECT_TRUE(group.registered.empty()) << "a communicator ends before its registrations";
      if (group.children > 0) count("parent ended first");
      group.ending = true;
    });
  }
  Result destroy(Comm comm) override {
    return call("destroy", comm, [this](Group& group) { leave(group); });
  }
  /// Like NCCL's: waits for the communicator's queued work on the device; within a group call, at
  /// its end.
  Result abort(Comm comm) override {
    std::shared_ptr<std::atomic<int>> under_way;
    {
      const std::lock_guard lock(mutex_);
      count("abort");
      Group& group = of(comm);
      if (group.gone) return Result::invalid_argument;
      leave(group);
      *group.aborted = true;
      hand_over(group);  // which drops it
      under_way = group.under_way;
    }
    aborted.push_back(std::move(under_way));
    return depth > 0 ? Result::success : wait_for_aborted();
  }

  Result group_start() override {
    ++depth;
    return Result::success;
  }
  Result group_end() override {
    if (--depth > 0) return Result::success;
    if (!aborted.empty()) return wait_for_aborted();
    std::vector<Call> calls = std::exchange(grouped, {});
    if (calls.empty()) return Result::success;
    const std::lock_guard lock(mutex_);
    if (const Result result = count("group_end"); result != Result::success) return result;
    return submit(std::move(calls));
  }
  Result send(const void* from, std::size_t bytes, int peer, Comm comm, void* queue) override {
    return post("send", {.kind = Kind::send, .from = from, .bytes = bytes, .peer = peer}, comm,
                queue);
  }
  Result receive(void* to, std::size_t bytes, int peer, Comm comm, void* queue) override {
    return post("receive", {.kind = Kind::receive, .to = to, .bytes = bytes, .peer = peer}, comm,
                queue);
  }
  Result all_gather(const void* from, void* to, std::size_t bytes, Comm comm,
                    void* queue) override {
    return post("all_gather", {.kind = Kind::all_gather, .from = from, .to = to, .bytes = bytes},
                comm, queue);
  }
  Result broadcast(void* data, std::size_t bytes, int root, Comm comm, void* queue) override {
    return post("broadcast",
                {.kind = Kind::broadcast, .from = data, .to = data, .bytes = bytes, .peer = root},
                comm, queue);
  }
  Result all_reduce(void* data, std::size_t n, DType type, Comm comm, void* queue) override {
    return post("all_reduce",
                {.kind = Kind::all_reduce,
                 .from = data,
                 .to = data,
                 .bytes = n * size_of(type),
                 .type = type},
                comm, queue);
  }
  Result reduce_scatter(const void* from, void* to, std::size_t n, DType type, Comm comm,
                        void* queue) override {
    return post("reduce_scatter",
                {.kind = Kind::reduce_scatter,
                 .from = from,
                 .to = to,
                 .bytes = n * size_of(type),
                 .type = type},
                comm, queue);
  }
  Result reduce(const void* from, void* to, std::size_t n, DType type, int root, Comm comm,
                void* queue) override {
    return post("reduce",
                {.kind = Kind::reduce,
                 .from = from,
                 .to = to,
                 .bytes = n * size_of(type),
                 .peer = root,
                 .type = type},
                comm, queue);
  }

 private:
  enum class Kind { send, receive, all_gather, broadcast, all_reduce, reduce_scatter, reduce };
  struct Group;
  struct Call {
    Kind kind = Kind::send;
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    int peer = 0;
    DType type = DType::f32;
    Group* group = nullptr;
    void* queue = nullptr;
  };
  struct Group {
    std::vector<int> members;  // world ranks
    int rank = 0, tag = 0;
    int delay = 0;  // polls until no longer in progress
    bool ending = false, gone = false;
    std::list<std::pair<void*, std::size_t>> registered;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<std::atomic<int>> under_way = std::make_shared<std::atomic<int>>(0);
    // Of all that share resources: their operations are done one after another.
    std::shared_ptr<int> submitted = std::make_shared<int>(0);
    std::shared_ptr<std::atomic<int>> done = std::make_shared<std::atomic<int>>(0);
    Group* parent = nullptr;
    int children = 0;
    std::pair<Comm*, Comm> made{};  // by a split in progress: where it goes
    std::vector<std::pair<void*, std::function<bool()>>> held;  // until no longer in progress
    int size() const { return static_cast<int>(members.size()); }
  };

  /// The messages of one group call, as the device executes them.
  struct Work {
    std::vector<Call> calls;
    MPI_Comm world = MPI_COMM_NULL;
    std::vector<MPI_Request> requests;
    std::vector<std::pair<const Call*, std::vector<std::vector<std::byte>>>> sums;
    bool posted = false;

    void send(const Call& call, std::size_t offset, int peer, int kind) {
      requests.emplace_back();
      MPI_Isend(static_cast<const std::byte*>(call.from) + offset, static_cast<int>(call.bytes),
                MPI_BYTE, call.group->members[peer], call.group->tag + kind, world,
                &requests.back());
    }
    void receive(const Call& call, void* to, int peer, int kind) {
      requests.emplace_back();
      MPI_Irecv(to, static_cast<int>(call.bytes), MPI_BYTE, call.group->members[peer],
                call.group->tag + kind, world, &requests.back());
    }
    void post_sum(const Call& call, bool own, const std::function<std::size_t(int)>& offset) {
      const Group& group = *call.group;
      auto& parts = sums.emplace_back(&call, std::vector<std::vector<std::byte>>()).second;
      for (int r = 0; own && r < group.size(); ++r) parts.emplace_back(call.bytes);
      for (int r = 0; r < group.size(); ++r) {
        const std::byte* from = static_cast<const std::byte*>(call.from) + offset(r);
        const bool goes = call.kind != Kind::reduce || r == call.peer;
        if (r == group.rank && own) std::memcpy(parts[r].data(), from, call.bytes);
        if (r == group.rank) continue;
        if (own) receive(call, parts[r].data(), r, 1);
        if (goes) send(call, offset(r), r, 1);
      }
    }
    void post(const Call& call) {
      const Group& group = *call.group;
      auto* const to = static_cast<std::byte*>(call.to);
      switch (call.kind) {
        case Kind::send:
          return send(call, 0, call.peer, 0);
        case Kind::receive:
          return receive(call, call.to, call.peer, 0);
        case Kind::all_gather:
          for (int r = 0; r < group.size(); ++r) {
            if (r == group.rank) continue;
            receive(call, to + static_cast<std::size_t>(r) * call.bytes, r, 1);
            send(call, 0, r, 1);
          }
          std::memmove(to + static_cast<std::size_t>(group.rank) * call.bytes, call.from,
                       call.bytes);
          return;
        case Kind::broadcast:
          if (group.rank != call.peer) return receive(call, call.to, call.peer, 1);
          for (int r = 0; r < group.size(); ++r) {
            if (r != group.rank) send(call, 0, r, 1);
          }
          return;
        case Kind::all_reduce:
          return post_sum(call, true, [](int) { return std::size_t{0}; });
        case Kind::reduce_scatter:
          return post_sum(call, true,
                          [&](int r) { return static_cast<std::size_t>(r) * call.bytes; });
        case Kind::reduce:
          return post_sum(call, group.rank == call.peer, [](int) { return std::size_t{0}; });
      }
    }
    template <class T>
    static void add(const Call& call, const std::vector<std::vector<std::byte>>& parts) {
      auto* to = static_cast<T*>(call.to);
      for (std::size_t i = 0; i < call.bytes / sizeof(T); ++i) {
        T sum = 0;  // last rank first: NCCL promises no order
        for (std::size_t r = parts.size(); r-- > 0;) {
          sum += reinterpret_cast<const T*>(parts[r].data())[i];
        }
        to[i] = sum;
      }
    }
    bool step() {
      if (!std::exchange(posted, true)) {
        for (const Call& call : calls) post(call);
      }
      int finished = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &finished,
                  MPI_STATUSES_IGNORE);
      if (finished == 0) return false;
      for (const auto& [call, parts] : sums) {
        if (parts.empty()) continue;
        if (call->type == DType::f32) add<float>(*call, parts);
        if (call->type == DType::f64) add<double>(*call, parts);
        if (call->type == DType::i64) add<std::int64_t>(*call, parts);
      }
      return true;
    }
    void drop() {
      for (MPI_Request& request : requests) {
        if (request == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
  };

  /// What a rank passes to a split.
  struct Offer {
    int color = 0, key = 0, world_rank = 0, sequence = 0;
  };

  static Group& of(Comm comm) { return *reinterpret_cast<Group*>(comm); }
  // mutex_ guards this and what follows.
  Result count(const std::string& name) {
    ++calls_[name];
    if (refused_.first != name) return Result::success;
    refused_.first.clear();
    return refused_.second;
  }
  template <class Body>
  Result call(const std::string& name, Comm comm, const Body& body) {
    const std::lock_guard lock(mutex_);
    if (const Result result = count(name); result != Result::success) return result;
    Group& group = of(comm);
    if (group.gone || group.delay > 0) return Result::invalid_usage;
    body(group);
    return Result::success;
  }
  Result wait_for_aborted() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (const auto& under_way : std::exchange(aborted, {})) {
      while (*under_way > 0) {
        if (std::chrono::steady_clock::now() > end) {  // hung
          const std::lock_guard lock(mutex_);
          count("abort that hangs");
          return Result::internal_error;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return Result::success;
  }
  Result post(const std::string& name, Call call, Comm comm, void* queue) {
    const std::lock_guard lock(mutex_);
    if (const Result result = count(name); result != Result::success) return result;
    call.group = &of(comm);
    call.queue = queue;
    if (call.group->gone || call.group->delay > 0) return Result::invalid_usage;
    if (*call.group->aborted) return Result::remote_error;  // with another of its family
    if (call.bytes == 0) return Result::invalid_argument;
    if (call.from != nullptr) call.from = device_.real(static_cast<const std::byte*>(call.from));
    if (call.to != nullptr) call.to = device_.real(static_cast<std::byte*>(call.to));
    if (depth == 0) return submit({call});
    grouped.push_back(call);
    return Result::success;
  }
  Result submit(std::vector<Call> calls) {
    Group& group = *calls.front().group;
    void* const queue = calls.front().queue;
    auto work = std::make_shared<Work>();
    work->calls = std::move(calls);
    work->world = world_;
    ++*group.under_way;
    group.held.emplace_back(queue, [work, aborted = group.aborted, under_way = group.under_way,
                                    number = (*group.submitted)++, done = group.done,
                                    on_device = crowded_ ? &on_device_ : nullptr,
                                    started = ordered_ ? &started_ : nullptr, place = called_++] {
      // One thread of the device calls this.
      const auto finds_room = [&] {
        if (on_device == nullptr || *on_device == work.get()) return true;
        if (*on_device != nullptr || (started != nullptr && *started != place)) return false;
        if (started != nullptr) ++*started;
        *on_device = work.get();
        return true;
      };
      if (*aborted) {
        work->drop();
      } else if (*done != number || !finds_room() || !work->step()) {
        return false;
      }
      if (on_device != nullptr && *on_device == work.get()) *on_device = nullptr;
      ++*done;
      --*under_way;
      return true;
    });
    group.delay = next_delay_ > 0 ? std::exchange(next_delay_, 0) : turn_++ % 4;  // often at once
    if (group.delay == 0) hand_over(group);
    return group.delay == 0 ? Result::success : Result::in_progress;
  }
  void leave(Group& group) {
    for (const auto& [data, bytes] : std::exchange(group.registered, {})) {
      device_.note_deregistered(data, bytes);  // with an abort
    }
    group.gone = true;
    --alive_;
    if (group.children > 0) count("parent ended first");
    if (group.parent != nullptr) --group.parent->children;
  }
  void hand_over(Group& group) {
    for (auto& [queue, task] : std::exchange(group.held, {}))
      device_.repeat(queue, std::move(task));
  }
  /// Exchanges world ranks through the rank that created the id.
  void exchange_members(Group& group, int root) {
    const int own[2] = {group.rank, world_rank_};
    auto* const members = group.members.data();
    if (world_rank_ == root) {
      members[group.rank] = world_rank_;
      for (int i = 1; i < group.size(); ++i) {
        int theirs[2] = {};
        MPI_Recv(theirs, 2, MPI_INT, MPI_ANY_SOURCE, group.tag, world_, MPI_STATUS_IGNORE);
        members[theirs[0]] = theirs[1];
      }
      for (int r = 0; r < group.size(); ++r) {
        if (r != group.rank)
          MPI_Send(members, group.size(), MPI_INT, members[r], group.tag, world_);
      }
    } else {
      MPI_Send(own, 2, MPI_INT, root, group.tag, world_);
      MPI_Recv(members, group.size(), MPI_INT, root, group.tag, world_, MPI_STATUS_IGNORE);
    }
  }

  /// Every rank's offer, in the order of `parent`, by way of its first rank.
  std::vector<Offer> exchange_offers(const Group& parent, const Offer& own) {
    std::vector<Offer> all(parent.members.size());
    const int one = static_cast<int>(sizeof(Offer)), tag = parent.tag;
    const auto& ranks = parent.members;
    all[parent.rank] = own;
    if (parent.rank == 0) {
      for (int r = 1; r < parent.size(); ++r) {
        MPI_Recv(&all[r], one, MPI_BYTE, ranks[r], tag, world_, MPI_STATUS_IGNORE);
      }
      for (int r = 1; r < parent.size(); ++r) {
        MPI_Send(all.data(), parent.size() * one, MPI_BYTE, ranks[r], tag, world_);
      }
    } else {
      MPI_Send(&own, one, MPI_BYTE, ranks[0], tag, world_);
      MPI_Recv(all.data(), parent.size() * one, MPI_BYTE, ranks[0], tag, world_, MPI_STATUS_IGNORE);
    }
    return all;
  }

  SimulatedDevice& device_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int world_rank_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::map<std::string, int> calls_;
  std::pair<std::string, Result> refused_;
  Result broken_ = Result::success;
  int sequence_ = 0, alive_ = 0, turn_ = 0, next_delay_ = 0;
  bool ordered_, recent_;
  int called_ = 0, started_ = 0;  // operations, where they start in order
  bool crowded_ = false;
  const Work* on_device_ = nullptr;  // where only one finds room
  // Group calls are per thread.
  static inline thread_local int depth = 0;
  static inline thread_local std::vector<Call> grouped;
  static inline thread_local std::vector<std::shared_ptr<std::atomic<int>>>
      aborted;  // not waited for
};

}  // namespace trireme::testing_support
