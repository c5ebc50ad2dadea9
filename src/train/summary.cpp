// The record that a run begins with and the summary that it ends with.
#include <utility>

#include "trireme/core/text.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::train {

namespace {

/// What about the configuration costs more than a user may expect, one line each.
std::vector<std::string> cost_notes(const RunConfig& config, const parallel::StageOptions& stage) {
  std::vector<std::string> notes;
  const std::int64_t zero = config.parallel.zero;
  if (config.numerics.reproducible) {
    notes.emplace_back("reproducible mode: sums in a fixed order, slower with small matrices");
    if (zero >= 2) {
      notes.push_back(
          fmt::format("parallel.zero = {}: reproducible mode keeps gradients whole on every rank, "
                      "as zero 1 does",
                      zero));
    }
    return notes;
  }
  const int sent = zero == 2   ? stage.micro_batches + 1
                   : zero == 3 ? (stage.reshard_after_forward ? 3 : 2) * stage.micro_batches
                               : 0;
  if (sent > 3 && stage.place.data > 1) {
    notes.push_back(fmt::format(
        "parallel.zero = {} with {} micro-batches sends {} times the parameters in a step, zero 1 "
        "twice: a larger train.micro_batch sends less, zero 1 least",
        zero, stage.micro_batches, sent));
  }
  return notes;
}

/// Why a run has no graphs though it asks for them, one line; empty: it has, or asks for none.
/// `host`: it computes on CPUs, which have none.
std::string graphs_warning(const device::DeviceConfig& config, bool host, bool trace) {
  if (!config.graphs || host) return {};
  if (trace) return "device.graphs: makes none, since train.trace times each operation";
  return {};
}

/// What carries tensors, by kind of group; of those with more than one rank.
nlohmann::json backends_json(const comm::Grid& grid) {
  nlohmann::json json = nlohmann::json::object();
  for (const comm::GroupKind kind : comm::all_group_kinds) {
    if (comm::group_size(grid.shape(), kind, 0) == 1) continue;
    json[std::string(name_of(kind))] = name_of(grid.backend(kind));
  }
  return json;
}

/// Of an arena the bytes planned, and the end of the last view that was made: those of the rank
/// that differs most from its plan; of the fullest, where none does. Collective.
report::MemoryRow high_water(const char* arena, std::size_t planned, std::size_t reached,
                             comm::Communicator& world) {
  report::MemoryRow worst{.name = arena};
  for (const nlohmann::json& theirs : report::gather_json({planned, reached}, world)) {
    const report::MemoryRow mark{arena, theirs.at(0).get<std::int64_t>(),
                                 theirs.at(1).get<std::int64_t>(), false};
    if (weight_of(mark) > weight_of(worst)) worst = mark;
  }
  return worst;
}

}  // namespace

MemoryPrediction Trainer::predict_memory() const {
  const RunConfig& config = job_.config;
  const bool host = job_.computes.device().is_host();
  plan::MemoryQuestion question{
      .optim = config.optim,
      .threads = job_.threads,
      .host = host,
      .cuda = job_.computes.on_cuda() ? std::optional(cuda_work(config)) : std::nullopt,
      .shape = grid_.shape(),
      .rank = grid_.world().rank(),
      .backends = grid_.backends(),
      .bucket_elements = bucket_elements(config),
      .snapshots =
          config.checkpoint.in_background() || !replica_.state().optimizer_device().is_host()};
  method_.configure(question);
  MemoryPrediction prediction{plan::predict_memory(replica_.stage(), question), {}};
  for (const auto& [use, bytes] : prediction.bytes) {
    if (!plan::predicts_all(use, host, replica_.stage().options().served))
      prediction.in_part.insert(use);
  }
  return prediction;
}

void Trainer::begin_record(const Environment& environment, double peak) {
  const RunConfig& config = job_.config;
  const comm::GridShape& shape = grid_.shape();
  RunStart start{
      .step = position_.step,
      .samples = position_.samples,
      .peak = peak,
      .layout = shape.to_string(),
      .place = {{"tensor", shape.of(comm::Axis::tensor)},
                {"context", shape.of(comm::Axis::context)},
                {"pipeline", shape.of(comm::Axis::pipeline)},
                {"data", shape.of(comm::Axis::data)},
                {"servers", 0}},
      .predicted_memory = prediction_json(predicted_.bytes),
      .predicted_step = predicted_step_,
      .extra = {{"backends", backends_json(grid_)},
                {"product_algorithms", replica_.choices()},
                {"attention", replica_.attention_choices()}},
      .lines = {fmt::format("layout: {}; {} a rank; batch {} sequences = {} tokens; micro-batch {}",
                            shape.to_string(), counted(job_.threads, "thread"), config.train.batch,
                            config.train.batch * config.model.sequence, config.train.micro_batch)},
      .warnings = grid_.warnings(),
      .notes = cost_notes(config, replica_.stage().options())};
  start.warnings.push_back(attention_warning(replica_.attention_choices()));
  start.warnings.push_back(
      graphs_warning(config.device, job_.computes.on_host(), config.train.trace));
  if (const auto found = predicted_.bytes.find(device::Use::offloaded);
      found != predicted_.bytes.end()) {
    start.notes.push_back(
        fmt::format("zero.offload = {}: optimizer state and fp32 masters in host memory, {:.1f} "
                    "MiB on rank 0, updated there by {}",
                    config.zero.offload, static_cast<double>(found->second) / (1 << 20),
                    counted(job_.threads, "thread")));
  }
  method_.describe(start);
  reporter_.begin(start, environment, corpus_);
}

nlohmann::json Trainer::account() const {
  const std::int64_t steps = reporter_.steps();
  nlohmann::json account = account_.to_json(steps, method_.least_traffic(steps));
  account["communication"].update(method_.further_traffic(steps));
  account["rank"] = grid_.world().rank();
  account["host"] = report::host_name();
  account["tensor"] = grid_.coordinate(comm::Axis::tensor);
  account["context"] = grid_.coordinate(comm::Axis::context);
  account["pipeline"] = grid_.coordinate(comm::Axis::pipeline);
  account["data"] = grid_.coordinate(comm::Axis::data);
  account["time"] = report::rank_time(job_.recorder);
  account["graphs"] = graphs_account(replica_.engine().graphs());
  // What libraries take for themselves, NCCL above all, is no use of the ledger's.
  if (const auto at_end = job_.computes.free_bytes()) {
    account["device_free_bytes"] = job_.computes.noted_free_bytes();
    account["device_free_bytes"]["at_end"] = *at_end;
  }
  return account;
}

// The machine may have been busy when the peak was measured first.
double Trainer::peak_at_end() {
  if (job_.config.train.peak != "measured" || reporter_.steps() == 0) return 0;
  const Section section(job_.recorder, "measure peak");
  try {
    return measure_peak();
  } catch (const AgreedError& error) {  // a device that is full by now: all steps are done
    reporter_.warn(fmt::format("the peak at the end is not measured: {}", error.what()));
    return 0;
  }
}

void Trainer::finish(Ending ending) {
  const comm::Watchdog::Pause unwatched(job_.watchdog);
  replica_.wait();  // the last update, which the trace should hold
  account_.count_traffic();
  method_.close();
  const double peak = peak_at_end();
  Closing closing = close_job(method_.everyone(), job_.recorder, account(), ending);
  RunSummary summary{.ranks = std::move(closing.ranks),
                     .sections = std::move(closing.sections),
                     .memory = report::gather_memory(job_.ledger, predicted_.bytes, grid_.world(),
                                                     predicted_.in_part),
                     .resident = closing.resident,
                     .peak = peak};
  for (const report::MemoryRow& row : memory_of(summary.ranks)) summary.memory.push_back(row);
  const parallel::StageMemory& arenas = replica_.engine().memory();
  const report::MemoryRow stash =
      high_water("stash", arenas.plan().stash_bytes(), arenas.stash_high_water(), grid_.world());
  const report::MemoryRow work =
      high_water("workspace", arenas.plan().work_bytes(), arenas.work_high_water(), grid_.world());
  summary.extra["high_water"] = memory_json({stash, work});
  summary.lines.push_back(fmt::format(
      "arena high-water marks, predicted and measured: stash {} and {}, work space {} and {} bytes",
      stash.predicted, stash.measured, work.predicted, work.measured));
  if (job_.config.data.packs()) {
    const std::int64_t padding = padding_of(summary.ranks);
    const std::int64_t tokens =
        reporter_.steps() * job_.config.train.batch * job_.config.model.sequence;
    summary.extra["padding"] = padding;
    summary.lines.push_back(
        fmt::format("padding: {} of {} tokens, {:.2f} %", padding, tokens,
                    100 * static_cast<double>(padding) /
                        static_cast<double>(std::max<std::int64_t>(1, tokens))));
  }
  method_.describe(summary, reporter_.steps());
  if (reporter_.is_root()) reporter_.write_trace(closing.trace);
  reporter_.finish(std::move(summary));
}

}  // namespace trireme::train
