#include "nccl_handle.hpp"

#include <cstring>
#include <utility>

#include "trireme/comm/agree.hpp"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Result = NcclApi::Result;

/// A new group's id, as rank 0 gets it from NCCL.
NcclApi::UniqueId agree_on_id(NcclApi& api, Communicator& mpi, const std::string& name,
                              const std::string& key) {
  const std::string text = of_rank_zero(mpi, [&] {
    NcclApi::UniqueId id{};
    const Result result = api.get_unique_id(id);
    if (result != Result::success) {
      throw Error("nccl: group {}: no unique id: {}; {} = mpi avoids NCCL", name,
                  api.describe(result, nullptr), key);
    }
    return std::string(id.data(), id.size());
  });
  NcclApi::UniqueId id{};
  TRIREME_ASSERT(text.size() == id.size(), "a unique id of {} bytes", text.size());
  std::memcpy(id.data(), text.data(), id.size());
  return id;
}

}  // namespace

NcclHandle::NcclHandle(NcclRuntime& runtime, Communicator& mpi, const std::string& name,
                       std::string key, const NcclOrigin& origin)
    : runtime_(runtime),
      where_(fmt::format("rank {} of {} of group {}", mpi.rank(), mpi.size(), name)),
      key_(std::move(key)) {
  NcclApi::UniqueId id{};
  if (origin.parent == nullptr) id = agree_on_id(runtime_.api(), mpi, name, key_);
  const std::lock_guard lock(mutex_);
  try {
    if (origin.parent != nullptr) {
      origin.parent->split(name, origin.color, mpi.rank(), comm_);
    } else {
      require(runtime_.api().init(comm_, mpi.size(), id, mpi.rank()), "init");
    }
    wait_for("init");
  } catch (...) {  // no destructor will run
    abort();
    throw;
  }
  watched_ = true;
  runtime_.add(*this);
}

NcclHandle::~NcclHandle() {
  runtime_.remove(*this);
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  watched_ = false;
  try {
    if (failure_ || std::uncaught_exceptions() > 0) {
      abort();
    } else {
      end();
    }
  } catch (...) {  // the device reports it
    abort();
  }
}

void NcclHandle::abort() {
  if (comm_ != nullptr) runtime_.api().abort(std::exchange(comm_, nullptr));
}

void NcclHandle::end() {
  require(runtime_.api().finalize(comm_), "finalize");
  wait_for("finalize");
  require(runtime_.api().destroy(std::exchange(comm_, nullptr)), "destroy");
}

void NcclHandle::split(const std::string& name, int color, int key, NcclApi::Comm& made) {
  const std::string operation = "split for group " + name;
  const std::lock_guard lock(mutex_);
  const auto called = [&] {
    const std::lock_guard alone(runtime_.issuing());
    return runtime_.api().split(comm_, color, key, made);
  };
  try {
    wait_for(operation);
    require(called(), operation);
    wait_for(operation);
  } catch (...) {
    abort();  // after it NCCL does not write `made`
    throw;
  }
}

std::string NcclHandle::register_memory(void* data, std::size_t bytes, void*& registered) {
  const std::lock_guard lock(mutex_);
  wait_for("register");
  const std::lock_guard alone(runtime_.issuing());
  const Result result = runtime_.api().register_memory(comm_, data, bytes, registered);
  return result == Result::success ? "" : runtime_.api().describe(result, comm_);
}

void NcclHandle::deregister_memory(void* registered) noexcept {
  const auto is_used = [&] {
    const std::lock_guard lock(mutex_);
    try {
      return comm_ != nullptr && last_end_ != nullptr && !last_end_->reached();
    } catch (const Error&) {  // the device's, which whoever waits for it gets
      return false;
    }
  };
  while (is_used()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  const std::lock_guard alone(runtime_.issuing());
  runtime_.api().deregister_memory(comm_, registered);
}

void NcclHandle::queued(std::shared_ptr<device::Fence> end) {
  const std::lock_guard lock(mutex_);
  last_end_ = std::move(end);
}

bool NcclHandle::issue(const char* operation, const Calls& calls) {
  const std::lock_guard lock(mutex_);
  if (!ready(operation)) return false;
  const auto called = [&] {
    const std::lock_guard alone(runtime_.issuing());
    return calls(runtime_.api(), comm_);
  };
  require(called(), operation);
  return true;
}

bool NcclHandle::issue_group(const char* operation, const Calls& calls) {
  return issue(operation, [&](NcclApi& api, NcclApi::Comm comm) {
    const Result started = api.group_start();
    if (started != Result::success) return started;
    const Result called = calls(api, comm);
    // A group that was begun must be ended, whatever became of it.
    const Result ended = api.group_end();
    return called == Result::success || called == Result::in_progress ? ended : called;
  });
}

bool NcclHandle::settled(const char* operation) {
  const std::lock_guard lock(mutex_);
  return ready(operation);
}

bool NcclHandle::ready(const std::string& operation) {
  if (failure_) std::rethrow_exception(failure_);
  Result state = Result::success;
  require(runtime_.api().async_error(comm_, state), operation);
  require(state, operation);
  return state != Result::in_progress;
}

void NcclHandle::look() {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  try {
    ready("work under way");
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): reported to the device, and kept
  }
}

void NcclHandle::require(Result result, const std::string& operation) {
  if (result == Result::success || result == Result::in_progress) return;
  fail(operation, runtime_.api().describe(result, comm_));
}

void NcclHandle::fail(const std::string& operation, const std::string& reason) {
  give_up(std::make_exception_ptr(
      Error("nccl: {} on {}: {}; NCCL_DEBUG=WARN shows more, {} = mpi avoids NCCL", operation,
            where_, reason, key_)));
  if (watched_) runtime_.abandon_soon(failure_);
  std::rethrow_exception(failure_);
}

void NcclHandle::give_up(const std::exception_ptr& why) {
  failure_ = why;
  // Before the abort, which wakes whoever waits for the device's work.
  runtime_.ledger().device().fail(failure_);
}

NcclApi::Comm NcclHandle::surrender(const std::exception_ptr& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) give_up(why);
  return std::exchange(comm_, nullptr);
}

void NcclHandle::wait_for(const std::string& operation) {
  const auto end = Clock::now() + runtime_.options().patience;
  while (!ready(operation)) {
    if (Clock::now() >= end) {
      fail(operation, fmt::format("not done after {} s: another rank has not come this far",
                                  runtime_.options().patience.count() / 1000.0));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

LaunchOrder::Ticket LaunchOrder::take(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back({next_, &stream});
  return next_++;
}

bool LaunchOrder::is_turn(Ticket ticket, const device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (waiting_.front().ticket == ticket) return true;
  TRIREME_ASSERT(waiting_.front().stream != &stream, "tickets {} and {} of a stream out of order",
                 waiting_.front().ticket, ticket);
  // Nobody else may be polling it. Within a poll no other follows: it could come back to the stream
  // where the first one began.
  if (!std::exchange(polling_, true)) {
    waiting_.front().stream->poll();
    polling_ = false;
  }
  return waiting_.front().ticket == ticket;
}

void LaunchOrder::leave(Ticket ticket, std::shared_ptr<device::Fence> end) {
  const std::lock_guard lock(mutex_);
  if (end) last_end_ = std::move(end);
  std::erase_if(waiting_, [&](const Entry& entry) { return entry.ticket == ticket; });
}

std::shared_ptr<device::Fence> LaunchOrder::last_end() {
  const std::lock_guard lock(mutex_);
  return last_end_;
}

NcclRuntime::NcclRuntime(NcclApi& api, device::MemoryLedger& ledger, const NcclOptions& options)
    : api_(api),
      ledger_(ledger),
      options_(options),
      in_turns_(!api.orders_launches()),
      thread_([this] { run(); }) {}

NcclRuntime::~NcclRuntime() {
  parents_.clear();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  condition_.notify_one();
  thread_.join();
}

void NcclRuntime::add(NcclHandle& handle) {
  {
    const std::lock_guard lock(mutex_);
    handles_.push_back(&handle);
  }
  condition_.notify_one();
}

void NcclRuntime::remove(NcclHandle& handle) {
  const std::lock_guard lock(mutex_);
  std::erase(handles_, &handle);
}

void NcclRuntime::abandon(const std::exception_ptr& why) noexcept {
  const std::lock_guard lock(mutex_);
  abandon_all(why);
}

void NcclRuntime::abandon_all(const std::exception_ptr& why) noexcept {
  // An abort waits for what its communicator has in the device's queues, which may be behind
  // another's that waits for a lost rank: all abort together before any is waited for.
  const bool grouped = api_.group_start() == Result::success;
  for (auto handle = handles_.rbegin(); handle != handles_.rend(); ++handle) {
    if (const NcclApi::Comm comm = (*handle)->surrender(why)) api_.abort(comm);
  }
  if (grouped) api_.group_end();
}

void NcclRuntime::abandon_soon(const std::exception_ptr& why) noexcept {
  {
    const std::lock_guard lock(news_);
    if (!failed_) failed_ = why;
  }
  condition_.notify_one();
}

std::string NcclRuntime::refusal() {
  const std::lock_guard lock(news_);
  return refusal_;
}

void NcclRuntime::note_refusal(const std::string& text) {
  const std::lock_guard lock(news_);
  if (refusal_.empty()) refusal_ = text;
}

void NcclRuntime::run() {
  ledger_.device().enter_thread();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (handles_.empty()) {
      condition_.wait(lock, [this] { return stop_ || !handles_.empty(); });
    } else {
      condition_.wait_for(lock, options_.period, [this] {
        const std::lock_guard news(news_);
        return stop_ || failed_;
      });
    }
    // Under the lock, so that none ends meanwhile.
    for (NcclHandle* handle : handles_) handle->look();
    const auto failed = [this] {
      const std::lock_guard news(news_);
      return std::exchange(failed_, nullptr);
    }();
    if (failed) abandon_all(failed);
  }
}

}  // namespace trireme::comm
