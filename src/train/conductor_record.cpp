// The record of a run in which no worker waits for another.
#include <algorithm>
#include <cmath>

#include "async.hpp"
#include "summary.hpp"
#include "trainer.hpp"

namespace trireme::train {

using nlohmann::json;

void Conductor::begin_record(const Beginning& beginning) {
  const Environment& environment = beginning.environment;
  json run = environment.provenance;
  run["config"] = job_.resolved;
  run["config_provenance"] = job_.provenance;
  run["layout"] =
      fmt::format("{}, {} parameter servers", job_.plan.shape.to_string(), job_.place.servers);
  run["place"] = {{"tensor", 1},
                  {"pipeline", 1},
                  {"data", job_.place.workers},
                  {"servers", job_.place.servers}};
  run["device"] = job_.computes.name();
  run["dataset"] = dataset_json(dataset_, config_);
  run["threads_per_rank"] = job_.threads;
  run["parameters"] = job_.model.table().elements();
  run["flops_per_token"] = job_.model.flops_per_token();
  run["peak"] = peak_json(config_, peak_);
  run["predicted_memory"] = beginning.predicted_memory;
  run["first_step"] = step_;
  run["cores_shared"] = environment.shared_cores;
  record_->write_run(run);
  const auto& model = config_.model;
  say(fmt::format("trireme {}: {} parameters, {} layers × {} wide, sequence {}, vocabulary {}",
                  TRIREME_VERSION, job_.model.table().elements(), model.layers, model.width,
                  model.sequence, model.vocabulary));
  say(fmt::format(
      "{} workers and {} parameter servers; {} threads a rank; batch {} sequences = {} tokens, a "
      "worker's share {}; micro-batch {}",
      job_.place.workers, job_.place.servers, job_.threads, config_.train.batch,
      config_.train.batch * model.sequence, config_.train.batch / job_.place.workers,
      config_.train.micro_batch));
  if (!job_.computes.warning().empty()) say("warning: " + job_.computes.warning());
  if (!environment.shared_cores.empty()) say("warning: " + environment.shared_cores);
  if (peak_ > 0) say(peak_line(config_, peak_));
}

json Conductor::staleness_json(const data_parallel::AsyncServer::Counts& counts) const {
  json histogram = json::array();
  double sum = 0;
  std::int64_t most = 0;
  for (const auto& [staleness, updates] : counts.by_staleness) {
    while (static_cast<std::int64_t>(histogram.size()) < staleness) histogram.push_back(0);
    histogram.push_back(updates);
    sum += static_cast<double>(staleness * updates);
    most = staleness;
  }
  const auto updates = static_cast<double>(std::max<std::int64_t>(1, counts.updates));
  return {{"updates", counts.updates},
          {"histogram", histogram},
          {"mean", sum / updates},
          {"most", most},
          {"bound",
           data_parallel::Tickets::most_stale(job_.place.workers, config_.server.max_staleness)},
          {"repeated_commits", counts.repeated}};
}

namespace {

std::vector<report::SectionTimes> section_times(const std::vector<json>& ranks) {
  std::map<std::string, report::SectionTimes> times;
  for (const json& rank : ranks) {
    for (const auto& [name, seconds] : rank.at("sections").items()) times[name].name = name;
  }
  std::vector<report::SectionTimes> rows;
  for (auto& [name, row] : times) {
    row.minimum = 1e300;
    for (const json& rank : ranks) {
      const double seconds = rank.at("sections").value(name, 0.0);
      row.minimum = std::min(row.minimum, seconds);
      row.maximum = std::max(row.maximum, seconds);
      row.average += seconds / static_cast<double>(ranks.size());
    }
    rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.average > b.average; });
  return rows;
}

/// By use, of workers and of servers: the rank that differs most from its prediction, else the
/// fullest.
std::vector<report::MemoryRow> memory_rows(const std::vector<json>& ranks) {
  std::map<std::string, report::MemoryRow> rows;
  for (const json& rank : ranks) {
    const std::string prefix = rank.contains("server") ? server_memory_prefix : "";
    for (const auto& [use, bytes] : rank.at("memory").items()) {
      const report::MemoryRow row{prefix + use, bytes.at("predicted").get<std::int64_t>(),
                                  bytes.at("measured").get<std::int64_t>(),
                                  bytes.value("in_part", false)};
      const auto weight = [](const report::MemoryRow& each) {
        return std::pair(std::abs(each.measured - each.predicted), each.measured);
      };
      const auto [at, fresh] = rows.emplace(row.name, row);
      if (!fresh && weight(row) > weight(at->second)) at->second = row;
    }
  }
  std::vector<report::MemoryRow> list;
  for (const auto& [name, row] : rows) list.push_back(row);
  return list;
}

}  // namespace

void Conductor::finish(const std::vector<json>& servers,
                       const data_parallel::AsyncServer::Counts& counts) {
  std::vector<json> ranks;
  for (const auto& [worker, account] : accounts_) ranks.push_back(account);
  ranks.insert(ranks.end(), servers.begin(), servers.end());
  const double total = seconds_since(begin_);
  const auto sections = section_times(ranks);
  const auto memory = memory_rows(ranks);
  std::int64_t resident = 0;
  for (const json& rank : ranks) {
    resident = std::max(resident, rank.at("resident_peak").get<std::int64_t>());
  }
  json times = json::object(), lost = json::object();
  for (const auto& s : sections) {
    times[s.name] = {{"min", s.minimum}, {"average", s.average}, {"max", s.maximum}};
  }
  for (const auto& [worker, why] : lost_) lost[std::to_string(worker)] = why;
  const std::int64_t tokens = steps_of_attempt_ * config_.train.batch * config_.model.sequence;
  const double speed = trained_seconds_ > 0 ? static_cast<double>(tokens) / trained_seconds_ : 0;
  const bool predicted = report::as_predicted(memory), finite = std::isfinite(last_loss_);
  const json staleness = staleness_json(counts);
  if (progress_) progress_->finish();
  record_->write_summary({{"steps", step_},
                          {"steps_of_attempt", steps_of_attempt_},
                          {"tokens_of_attempt", tokens},
                          {"seconds", total},
                          {"loss", last_loss_},
                          {"validation_loss", last_evaluation_},
                          {"sections", times},
                          {"memory", memory_json(memory)},
                          {"communication", communication_of(ranks)},
                          {"ranks", ranks},
                          {"resident_peak", resident},
                          {"staleness", staleness},
                          {"lost_workers", lost},
                          {"figure_of_merit", speed}},
                         step_ == config_.train.steps);
  if (!progress_) return;
  say("");
  say(report::timing_table(report::time_account(ranks, total, "the run")));
  say(report::memory_table(memory));
  std::string line;
  for (std::size_t s = 0; s < staleness.at("histogram").size(); ++s) {
    const auto updates = staleness.at("histogram")[s].get<std::int64_t>();
    if (updates > 0) line += fmt::format("  {}: {}", s, updates);
  }
  say(fmt::format("staleness of {} updates, as updates: times{}; mean {:.2f}, at most {} of {}",
                  counts.updates, line, staleness.at("mean").get<double>(),
                  staleness.at("most").get<std::int64_t>(),
                  staleness.at("bound").get<std::int64_t>()));
  for (const auto& [worker, why] : lost_) say(fmt::format("lost: worker rank {}: {}", worker, why));
  if (speed > 0 && peak_ > 0 && predicted && finite) {
    say(mfu_line(config_, speed * job_.model.flops_per_token(), peak_));
  }
  say("record: " + record_->folder().string());
  if (speed <= 0) return;
  if (!predicted) say("no figure of merit: memory measured is not what was predicted (! above)");
  if (!finite) say("no figure of merit: the last loss is not finite");
  say(report::figure_of_merit(predicted && finite ? speed : 0));
}

void Conductor::record_failure(const std::string& why) noexcept {
  if (!record_) return;
  try {
    record_->write_event(step_, "failed", why);
  } catch (const std::exception&) {
    return;  // the error that ends the run is the one to tell
  }
}

}  // namespace trireme::train
