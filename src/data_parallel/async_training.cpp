// A worker's life where no worker waits for another.
#include <algorithm>
#include <cmath>

#include <mpi.h>

#include "trireme/comm/agree.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data_parallel/memory.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/train/inject.hpp"

#include "async.hpp"

namespace trireme::data_parallel {

using namespace train;

namespace {

class AsyncTraining {
 public:
  AsyncTraining(AsyncJob& job, comm::rpc::Endpoint& endpoint, comm::Session& alone,
                Interruption& interruption)
      : job_(job),
        config_(job.config),
        endpoint_(endpoint),
        recorder_(job.recorder),
        interruption_(interruption),
        grid_(alone, comm::GridShape{{1, 1, 1, 1}}, job.ledger, grid_options(job.config)),
        corpus_(data::Corpus::open(config_.data.path, config_.model.sequence)),
        windows_(corpus_.windows(config_.data, static_cast<std::uint64_t>(config_.train.seed))),
        valid_(corpus_.splits(data::SplitName::valid)),
        replica_(job.model,
                 {.stage = stage_options(config_, job.plan.shape, job.plan.facts),
                  .optim = config_.optim,
                  .threads = job.threads,
                  .bucket_elements = bucket_elements(config_),
                  .overlap = config_.parallel.overlap,
                  .seed = static_cast<std::uint64_t>(config_.train.seed),
                  .watchdog = &job.watchdog,
                  .make_ops = job.computes.make_ops(),  // nobody agrees on what was timed
                  .make_method = make_worker(job, endpoint, link_),
                  .graphs = config_.device.graphs},
                 grid_, job.recorder, job.ledger),
        predicted_(job.prediction(plan::predict_memory(replica_.stage(), memory_question()))),
        faults_(parse_faults(config_.train.inject), job.session.rank()) {}

  /// Gives the first server what it must know of workers. Collective over all ranks.
  void inform_servers() {
    agree_on_peak(config_, *job_.everyone, job_.place.workers, &replica_);
    comm::of_rank_zero(*job_.everyone, [&] { return prediction_json(predicted_.bytes).dump(); });
  }

  Ending run() {
    recorder_.reset();
    messages::Outcome outcome;
    for (;;) {
      const messages::Work work = ask(outcome);
      outcome = {.number = work.ticket.number};
      switch (work.ticket.kind) {
        case Ticket::Kind::train:
          train(work, outcome);
          break;
        case Ticket::Kind::evaluate:
          evaluate(work.ticket, outcome);
          break;
        case Ticket::Kind::leave:
          endpoint_.call(messages::account, job_.first_server(), account().dump()).get();
          return static_cast<Ending>(work.ending);
      }
    }
  }

 private:
  plan::MemoryQuestion memory_question() const {
    plan::MemoryQuestion question{
        .optim = config_.optim,
        .threads = job_.threads,
        .host = job_.computes.on_host(),
        .cuda = job_.computes.on_cuda() ? std::optional(cuda_work(config_)) : std::nullopt,
        .shape = grid_.shape(),
        .rank = 0,
        .backends = grid_.backends(),
        .bucket_elements = bucket_elements(config_)};
    add_method_memory(question, config_, replica_.stage(), job_.place);
    return question;
  }

  messages::Work ask(const messages::Outcome& outcome) {
    interruption_.notify();
    job_.watchdog.beat("wait for a ticket");
    const comm::Watchdog::Pause idle(job_.watchdog);  // others may be slow
    const Section section(recorder_, "wait for a ticket");
    return endpoint_.call(messages::ask, job_.first_server(), outcome).get();
  }

  void fetch() {
    job_.watchdog.beat("wait for the model");
    const comm::Watchdog::Pause waits(job_.watchdog);  // for servers, which are watched themselves
    link_->fetch();
  }

  data::LoaderOptions loading() const {
    return {.micro_batch = config_.train.micro_batch,
            .length = config_.model.sequence,
            .document_mask = config_.data.document_mask};
  }

  void train(const messages::Work& work, messages::Outcome& outcome) {
    const Ticket& ticket = work.ticket;
    comm::Watchdog& watchdog = job_.watchdog;
    watchdog.beat("load data", ticket.step + 1);
    std::vector<parallel::HostMicrobatch> batches;
    {
      const Section section(recorder_, "load data");
      const std::int64_t rows = config_.train.micro_batch;
      for (std::int64_t at = 0; at < ticket.count; at += rows) {
        std::vector<std::int64_t> samples;
        for (std::int64_t i = 0; i < rows; ++i) samples.push_back(ticket.first + at + i);
        data::Batch batch = data::make_batch(windows_, loading(), samples);
        faults_.into_batch_once(batch, ticket.step + 1);  // nobody knows who will have which step
        batches.emplace_back(std::move(batch));
      }
    }
    fetch();
    link_->begin(ticket.number);
    const auto computing = Recorder::Clock::now();
    replica_.start(batches);
    const parallel::StepSums sums = replica_.finish();
    faults_.slow_down(seconds_since(computing));
    watchdog.beat("commit");
    const comm::Watchdog::Pause waits(watchdog);  // for servers, which are watched themselves
    outcome.loss = sums.loss.loss;
    outcome.weight = sums.loss.weight;
    outcome.norm = sums.gradient_norm;
    if (std::isfinite(sums.loss.mean()) && std::isfinite(sums.gradient_norm)) {
      replica_.update(work.learning_rate, ticket.step,
                      optim::clip_factor(sums.gradient_norm, config_.optim.clip));
    } else {
      outcome.skipped = 1;
      replica_.skip();
    }
    ++trained_;
  }

  /// Sums over part `share` of as many as there were workers of a split's validation windows.
  void evaluate(const Ticket& ticket, messages::Outcome& outcome) {
    fetch();
    const Section section(recorder_, "evaluate");
    const std::int64_t length = config_.model.sequence;
    data::TokenReader& reader = *valid_.at(static_cast<std::size_t>(ticket.first)).reader;
    const data::Sampler sampler(reader.tokens(), length, reader.tokens(), 0, false);
    const std::int64_t windows = sampler.windows_per_epoch();
    const std::int64_t most = config_.train.evaluate_samples;
    const params::Range own = params::tile_of(most > 0 ? std::min(most, windows) : windows,
                                              ticket.share, job_.place.workers);
    const std::int64_t rows = config_.train.micro_batch;
    for (std::int64_t at = own.begin; at < own.end; at += rows) {
      job_.watchdog.beat("evaluate");
      std::vector<std::int64_t> numbers;
      for (std::int64_t i = 0; i < rows; ++i) numbers.push_back(std::min(at + i, own.end - 1));
      data::Batch batch = data::make_batch(reader, sampler, loading(), numbers);
      // The last one is filled up with windows that weigh nothing.
      for (std::int64_t i = own.end - at; i < rows; ++i) {
        std::fill_n(batch.weights.begin() + static_cast<std::ptrdiff_t>(i * length), length, 0.0F);
      }
      for (const auto& part :
           replica_.engine().evaluate(parallel::HostMicrobatch(std::move(batch)))) {
        outcome.loss += part.loss;
        outcome.weight += part.weight;
      }
    }
  }

  nlohmann::json account() const {
    return {{"rank", job_.session.rank()},
            {"host", report::host_name()},
            {"tensor", 0},
            {"pipeline", 0},
            {"data", job_.session.rank()},
            {"sections", recorder_.seconds()},
            {"time", report::rank_time(recorder_)},
            {"tickets", trained_},
            {"communication", {{"servers", worker_traffic(*link_, job_, trained_)}}},
            {"graphs", graphs_account(replica_.engine().graphs())},
            {"memory", memory_account(predicted_, job_.ledger)},
            {"resident_peak", resident_peak()}};
  }

  AsyncJob& job_;
  const RunConfig& config_;
  comm::rpc::Endpoint& endpoint_;
  Recorder& recorder_;
  Interruption& interruption_;
  comm::Grid grid_;
  data::Corpus corpus_;
  data::Windows windows_;  // of its training samples
  std::vector<data::Corpus::Split> valid_;
  AsyncWorker* link_ = nullptr;  // before the replica, whose making sets it
  parallel::Replica replica_;
  MemoryPrediction predicted_;
  FaultInjector faults_;
  std::int64_t trained_ = 0;  // tickets
};

}  // namespace

Ending work_async(AsyncJob& job, comm::rpc::Endpoint& endpoint) {
  Interruption interruption(job, endpoint);
  struct Work {
    Work(AsyncJob& job, comm::rpc::Endpoint& endpoint, Interruption& interruption)
        : training(job, endpoint, alone, interruption) {}
    comm::Session alone{MPI_COMM_SELF};
    AsyncTraining training;
  };
  auto work = std::make_unique<Work>(job, endpoint, interruption);
  work->training.inform_servers();
  endpoint.start();
  job.begin_watch();
  try {
    return work->training.run();
  } catch (...) {
    // Messages may be on their way to and from its memory, which must outlive the endpoint.
    static_cast<void>(work.release());
    throw;
  }
}

}  // namespace trireme::data_parallel
