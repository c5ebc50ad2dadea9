// The record that a run begins with and the summary that it ends with.
#include "summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>

#include "trireme/comm/cores.hpp"
#include "trireme/plan/memory.hpp"
#include "trireme/train/traffic.hpp"

#include "trainer.hpp"

namespace trireme::train {

nlohmann::json memory_json(const std::vector<report::MemoryRow>& rows) {
  nlohmann::json json;
  for (const auto& row : rows) {
    json[row.name] = {{"predicted", row.predicted}, {"measured", row.measured}};
    if (row.in_part) json[row.name]["in_part"] = true;
  }
  return json;
}

nlohmann::json dataset_json(const data::Dataset& dataset, const RunConfig& config) {
  nlohmann::json json{{"name", dataset.manifest().name}};
  const auto samples = [&](data::SplitName split, const char* tokens_key, const char* key) {
    const std::int64_t tokens = dataset.reader(split)->tokens();
    json[tokens_key] = tokens;
    json[key] = std::max<std::int64_t>(0, (tokens - 1) / config.model.sequence);
  };
  samples(data::SplitName::train, "train_tokens", "train_samples");
  samples(data::SplitName::valid, "eval_tokens", "eval_samples");
  if (const std::int64_t most = config.train.evaluate_samples; most > 0) {
    json["eval_samples"] = std::min(most, json["eval_samples"].get<std::int64_t>());
  }
  return json;
}

nlohmann::json communication_of(const std::vector<nlohmann::json>& ranks) {
  nlohmann::json json = nlohmann::json::object();
  const auto n = static_cast<double>(ranks.size());
  for (const nlohmann::json& rank : ranks) {
    for (const auto& axis : rank.at("communication").items()) {
      const nlohmann::json& own = axis.value();
      nlohmann::json& all = json[axis.key()];
      if (all.is_null()) all = nlohmann::json::object();
      const auto most = [&](const char* key) {
        all[key] = std::max(all.value(key, 0.0), own.at(key).get<double>());
      };
      const auto mean = [&](const char* key, const char* of) {
        all[key] = all.value(key, 0.0) + own.at(of).get<double>() / n;
      };
      most("bytes_per_step");
      most("seconds_per_step");
      most("least_bytes_per_step");
      if (own.contains("received_per_step")) most("received_per_step");
      mean("mean_bytes_per_step", "bytes_per_step");
      mean("mean_seconds_per_step", "seconds_per_step");
      mean("mean_least_bytes_per_step", "least_bytes_per_step");
    }
  }
  return json;
}

namespace {

/// What about the configuration costs more than a user may expect, one line each.
std::vector<std::string> cost_notes(const RunConfig& config, const parallel::StageOptions& stage) {
  std::vector<std::string> notes;
  const std::int64_t zero = config.parallel.zero;
  if (config.numerics.reproducible) {
    notes.emplace_back("reproducible mode: sums in a fixed order, several times slower");
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

/// Appends what servers told of their memory, by use: of the one that differs most from what was
/// foretold, else of the fullest.
void add_server_memory(const std::vector<nlohmann::json>& ranks,
                       std::vector<report::MemoryRow>& rows) {
  std::map<std::string, report::MemoryRow> servers;
  for (const nlohmann::json& rank : ranks) {
    if (!rank.contains("memory")) continue;
    for (const auto& [use, bytes] : rank.at("memory").items()) {
      const report::MemoryRow row{server_memory_prefix + use,
                                  bytes.at("predicted").get<std::int64_t>(),
                                  bytes.at("measured").get<std::int64_t>()};
      const auto rank_of = [](const report::MemoryRow& each) {
        return std::pair(std::abs(each.measured - each.predicted), each.measured);
      };
      const auto [at, fresh] = servers.emplace(use, row);
      if (!fresh && rank_of(row) > rank_of(at->second)) at->second = row;
    }
  }
  for (const auto& [use, row] : servers) rows.push_back(row);
}

/// Bytes of an arena: those planned, and the end of the last view that was made.
struct HighWater {
  std::size_t predicted = 0, measured = 0;
};

/// The marks of the rank that differs most from its plan; of the fullest, where none does.
HighWater gather_high_water(const HighWater& own, comm::Communicator& world) {
  const std::uint64_t both[] = {own.predicted, own.measured};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(both);
  HighWater worst;
  const auto difference = [](const HighWater& mark) {
    return mark.predicted > mark.measured ? mark.predicted - mark.measured
                                          : mark.measured - mark.predicted;
  };
  for (const auto& theirs : world.all_gather_bytes({bytes, sizeof both})) {
    std::uint64_t marks[2] = {};
    std::memcpy(marks, theirs.data(), sizeof marks);
    const HighWater mark{marks[0], marks[1]};
    if (std::pair(difference(mark), mark.measured) > std::pair(difference(worst), worst.measured)) {
      worst = mark;
    }
  }
  return worst;
}

}  // namespace

nlohmann::json prediction_json(const std::map<device::Use, std::int64_t>& predicted) {
  nlohmann::json json;
  for (const auto& [use, bytes] : predicted) json[std::string(device::name_of(use))] = bytes;
  return json;
}

nlohmann::json peak_json(const RunConfig& config, double peak) {
  return {{"operations_per_second", peak},
          {"kind", config.train.peak == "measured" ? "measured" : "nominal"},
          {"type", config.precision.compute}};
}

std::string peak_line(const RunConfig& config, double peak) {
  return fmt::format("peak for MFU: {:.1f} GFLOP/s over all ranks ({})", peak / 1e9,
                     config.train.peak == "measured"
                         ? fmt::format("measured: best {} matrix product", config.precision.compute)
                         : "nominal: train.peak");
}

std::string mfu_line(const RunConfig& config, double operations, double peak) {
  return fmt::format("MFU {:.1f} % of the {} {} peak of {:.1f} GFLOP/s", 100 * operations / peak,
                     config.train.peak == "measured" ? "measured" : "nominal",
                     config.precision.compute, peak / 1e9);
}

void Trainer::begin_record() {
  nlohmann::json run = environment_.provenance;
  const TrainConfig& train = config_.train;
  run["config"] = resolved_;
  run["config_provenance"] = provenance_;
  run["layout"] = grid_.shape().to_string();
  run["place"] = {{"tensor", grid_.shape().of(comm::Axis::tensor)},
                  {"pipeline", grid_.shape().of(comm::Axis::pipeline)},
                  {"data", grid_.shape().of(comm::Axis::data)},
                  {"servers", servers_ != nullptr ? servers_->place.servers : 0}};
  run["device"] = computes_.device().name();
  run["dataset"] = dataset_json(dataset_, config_);
  run["threads_per_rank"] = threads_;
  run["parameters"] = model_.table().elements();
  run["flops_per_token"] = model_.flops_per_token();
  run["peak"] = peak_json(config_, peak_);
  run["predicted_memory"] = prediction_json(predicted_);
  run["product_algorithms"] = choices_json(replica_.choices());
  run["attention"] = attention_json(replica_.attention_choices());
  run["first_step"] = step_;
  run["cores_shared"] = environment_.shared_cores;
  comm::Communicator& world = grid_.world();
  if (is_root()) record_->write_run(run);
  world.barrier();
  say(fmt::format("trireme {}: {} parameters, {} layers × {} wide, sequence {}, vocabulary {}",
                  TRIREME_VERSION, model_.table().elements(), config_.model.layers,
                  config_.model.width, config_.model.sequence, config_.model.vocabulary));
  say(fmt::format("layout: {}; {} threads a rank; batch {} sequences = {} tokens; micro-batch {}",
                  grid_.shape().to_string(), threads_, train.batch,
                  train.batch * config_.model.sequence, train.micro_batch));
  for (const std::string& warning : grid_.warnings()) warn(warning);
  warn(computes_.warning());
  warn(environment_.shared_cores);
  warn(attention_warning(replica_.attention_choices()));
  warn(graphs_warning(config_.device, computes_.on_host(), grid_.shape(), train.trace));
  if (servers_ != nullptr) {
    say(fmt::format("parameter servers: {} hold the model for {} workers, who send gradients in {}",
                    servers_->place.servers, servers_->place.workers,
                    name_of(servers_->place.gradients)));
  }
  for (const std::string& note : cost_notes(config_, replica_.stage().options())) {
    say("note: " + note);
  }
  if (const auto found = predicted_.find(device::Use::offloaded); found != predicted_.end()) {
    say(fmt::format(
        "note: zero.offload = {}: optimizer state and fp32 masters in host memory, {:.1f} "
        "MiB on rank 0, updated there by {} threads",
        config_.zero.offload, static_cast<double>(found->second) / (1 << 20), threads_));
  }
  if (peak_ > 0) say(peak_line(config_, peak_));
}

void Trainer::count_traffic() {
  const auto now = grid_.traffic();
  traffic_.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    traffic_[i].first = now[i].first;
    traffic_[i].second += now[i].second.total();
  }
  grid_.reset_traffic();
}

nlohmann::json Trainer::account() const {
  const auto steps = static_cast<double>(std::max<std::size_t>(1, step_seconds_.size()));
  nlohmann::json sections = nlohmann::json::object(), traffic = nlohmann::json::object();
  for (const auto& [name, seconds] : recorder_.seconds()) {
    const auto found = evaluating_.find(name);
    const double outside = found == evaluating_.end() ? 0 : found->second;
    if (seconds > outside) sections[name] = seconds - outside;
  }
  auto least = least_traffic(replica_.stage());
  if (averaging_ && averages_ > 0) {
    const auto each = averages_json().at("least_bytes_each").get<double>();
    if (each > 0) least["data"] = each * static_cast<double>(averages_) / steps;
  }
  for (const auto& [name, total] : traffic_) {
    const auto found = least.find(name);
    const double needed = found == least.end() ? 0 : found->second;
    if (total.bytes == 0 && needed == 0) continue;
    traffic[name] = {{"bytes_per_step", static_cast<double>(total.bytes) / steps},
                     {"seconds_per_step", total.seconds / steps},
                     {"least_bytes_per_step", needed}};
  }
  if (servers_ != nullptr) {
    const data_parallel::ServedWorker& worker = *servers_->worker;
    const auto model = static_cast<double>(model_.table().elements());
    const parallel::StageOptions& stage = replica_.stage().options();
    traffic["servers"] = {
        {"bytes_per_step", static_cast<double>(worker.sent()) / steps},
        {"received_per_step", static_cast<double>(worker.received()) / steps},
        {"seconds_per_step", worker.seconds() / steps},
        {"least_bytes_per_step", model * static_cast<double>(size_of(servers_->place.gradients))},
        {"least_received_per_step", model * static_cast<double>(size_of(stage.compute))}};
  }
  nlohmann::json account = {{"rank", session_.rank()},
                            {"tensor", grid_.coordinate(comm::Axis::tensor)},
                            {"pipeline", grid_.coordinate(comm::Axis::pipeline)},
                            {"data", grid_.coordinate(comm::Axis::data)},
                            {"sections", sections},
                            {"time", report::rank_time(recorder_)},
                            {"communication", traffic}};
  account["graphs"] = graphs_account(replica_.engine().graphs());
  // What libraries take for themselves, NCCL above all, is no use of the ledger's.
  if (const auto at_end = computes_.free_bytes()) {
    account["device_free_bytes"] = computes_.noted_free_bytes();
    account["device_free_bytes"]["at_end"] = *at_end;
  }
  return account;
}

void Trainer::record_failure(const std::string& why) noexcept {
  if (!record_) return;
  try {
    record_->write_event(step_, "failed", why);
  } catch (const std::exception&) {
    return;  // the error that ends the run is the one to tell
  }
}

Closing close_job(comm::Communicator& everyone, const Recorder& recorder,
                  const nlohmann::json& account, Ending ending) {
  Closing closing;
  closing.ranks = report::gather_json(account, everyone);
  closing.resident = everyone.all_reduce(resident_peak(), comm::Reduction::max);
  closing.sections = report::gather_sections(recorder, everyone);
  closing.trace = report::gather_trace(recorder, everyone);
  closing.ending = static_cast<Ending>(
      everyone.all_reduce(static_cast<std::int64_t>(ending), comm::Reduction::max));
  return closing;
}

void Trainer::finish(Ending ending) {
  const comm::Watchdog::Pause pause(*watchdog_);
  replica_.wait();  // the last update, which the trace should hold
  count_traffic();
  if (servers_ != nullptr) {
    servers_->open = false;
    if (is_root()) servers_->worker->end({});
  }
  const Closing closing = close_job(everyone_, recorder_, account(), ending);
  const std::vector<nlohmann::json>& ranks = closing.ranks;
  const nlohmann::json traffic = communication_of(ranks);
  const std::int64_t resident = closing.resident;
  const double total = seconds_since(begin_);
  const auto& sections = closing.sections;
  std::set<device::Use> in_part;
  for (const auto& [use, bytes] : predicted_) {
    const bool all = plan::predicts_all(use, computes_.on_host(), servers_ != nullptr);
    if (!all) in_part.insert(use);
  }
  auto memory = report::gather_memory(ledger_, predicted_, grid_.world(), in_part);
  add_server_memory(ranks, memory);
  const parallel::StageMemory& arenas = replica_.engine().memory();
  const HighWater stash =
      gather_high_water({arenas.plan().stash_bytes(), arenas.stash_high_water()}, grid_.world());
  const HighWater work =
      gather_high_water({arenas.plan().work_bytes(), arenas.work_high_water()}, grid_.world());
  if (progress_) progress_->finish();
  if (!is_root()) return;
  if (!graphs_refused_) warn(refusals_warning(ranks));
  const double trained = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0);
  const double speed = trained > 0 ? static_cast<double>(attempt_tokens_) / trained : 0;
  nlohmann::json times;
  for (const auto& s : sections)
    times[s.name] = {{"min", s.minimum}, {"average", s.average}, {"max", s.maximum}};
  record_->write_trace(closing.trace.spans_by_rank);
  nlohmann::json summary = {
      {"steps", step_},
      {"steps_of_attempt", step_seconds_.size()},
      {"tokens_of_attempt", attempt_tokens_},
      {"seconds", total},
      {"loss", last_loss_},
      {"validation_loss", last_evaluation_},
      {"sections", times},
      {"memory", memory_json(memory)},
      {"communication", traffic},
      {"ranks", ranks},
      {"resident_peak", resident},
      {"high_water",
       {{"stash", {{"predicted", stash.predicted}, {"measured", stash.measured}}},
        {"workspace", {{"predicted", work.predicted}, {"measured", work.measured}}}}},
      {"figure_of_merit", speed}};
  if (averaging_) summary["averages"] = averages_json();
  record_->write_summary(summary, step_ == config_.train.steps);
  if (!progress_) return;
  say("");
  say(report::timing_table(report::time_account(ranks, total, "the run")));
  say(report::memory_table(memory));
  say(fmt::format(
      "arena high-water marks, predicted and measured: stash {} and {}, work space {} and {} bytes",
      stash.predicted, stash.measured, work.predicted, work.measured));
  if (resident > 0) {
    say(fmt::format("resident set at most, of any rank: {:.1f} MiB with program and libraries",
                    static_cast<double>(resident) / (1 << 20)));
  }
  for (const auto& [name, axis] : traffic.items()) {
    say(fmt::format("communication, {}: {:.3f} MB sent per step and rank, in {:.1f} ms",
                    name == "servers" ? name : name + " axis",
                    axis.at("bytes_per_step").get<double>() / 1e6,
                    1e3 * axis.at("seconds_per_step").get<double>()));
    if (!axis.contains("received_per_step")) continue;
    say(fmt::format("communication, servers: {:.3f} MB received per step and worker",
                    axis.at("received_per_step").get<double>() / 1e6));
  }
  if (averaging_) say(averages_line());
  const bool predicted = report::as_predicted(memory), finite = std::isfinite(last_loss_);
  if (speed > 0 && peak_ > 0 && predicted && finite) {
    say(mfu_line(config_, speed * model_.flops_per_token(), peak_));
  }
  say("record: " + record_->folder().string());
  if (speed <= 0) return;
  if (!predicted) say("no figure of merit: memory measured is not what was predicted (! above)");
  if (!finite) say("no figure of merit: the last loss is not finite");
  say(report::figure_of_merit(predicted && finite ? speed : 0));
}

}  // namespace trireme::train
