// The record that a run begins with and the summary that it ends with.
#include <algorithm>
#include <numeric>

#include "trainer.hpp"

namespace trireme::train {

namespace {

nlohmann::json memory_json(const std::vector<report::MemoryRow>& rows) {
  nlohmann::json json;
  for (const auto& row : rows)
    json[row.name] = {{"predicted", row.predicted}, {"measured", row.measured}};
  return json;
}

}  // namespace

void Trainer::begin_record() {
  nlohmann::json run = report::provenance(grid_.world(), versions());
  nlohmann::json predicted;
  for (const auto& [use, bytes] : predicted_) predicted[std::string(device::name_of(use))] = bytes;
  const TrainConfig& train = config_.train;
  run["config"] = resolved_;
  run["config_provenance"] = provenance_;
  run["layout"] = grid_.shape().to_string();
  run["threads_per_rank"] = threads_;
  run["parameters"] = model_.table().elements();
  run["flops_per_token"] = model_.flops_per_token();
  run["peak"] = {{"operations_per_second", peak_},
                 {"kind", train.peak == "measured" ? "measured" : "nominal"}};
  run["predicted_memory"] = predicted;
  run["first_step"] = step_;
  comm::Communicator& world = grid_.world();
  if (speaks()) record_->write_run(run);
  world.barrier();
  say(fmt::format("trireme {}: {} parameters, {} layers × {} wide, sequence {}, vocabulary {}",
                  TRIREME_VERSION, model_.table().elements(), config_.model.layers,
                  config_.model.width, config_.model.sequence, config_.model.vocabulary));
  say(fmt::format("layout: {}; {} threads a rank; batch {} sequences = {} tokens; micro-batch {}",
                  grid_.shape().to_string(), threads_, train.batch,
                  train.batch * config_.model.sequence, train.micro_batch));
  for (const std::string& warning : grid_.warnings()) say("warning: " + warning);
  if (peak_ > 0) {
    say(fmt::format(
        "peak for MFU: {:.1f} GFLOP/s over all ranks ({})", peak_ / 1e9,
        train.peak == "measured" ? "measured: best matrix product" : "nominal: train.peak"));
  }
}

nlohmann::json Trainer::gather_traffic() {
  nlohmann::json json = nlohmann::json::object();
  const auto steps = static_cast<double>(std::max<std::size_t>(1, step_seconds_.size()));
  for (const auto& [name, traffic] : grid_.traffic()) {
    const comm::Traffic total = traffic.total();
    comm::Communicator& world = grid_.world();
    const double bytes = world.all_reduce(static_cast<double>(total.bytes), comm::Reduction::max);
    const double seconds = world.all_reduce(total.seconds, comm::Reduction::max);
    if (bytes == 0) continue;
    json[name] = {{"bytes_per_step", bytes / steps}, {"seconds_per_step", seconds / steps}};
  }
  return json;
}

void Trainer::finish() {
  const comm::Watchdog::Pause pause(*watchdog_);
  const nlohmann::json traffic = gather_traffic();
  const double total = std::chrono::duration<double>(Clock::now() - begin_).count();
  const auto sections = report::gather_sections(recorder_, grid_.world());
  const auto memory = report::gather_memory(ledger_, predicted_, grid_.world());
  const auto trace = report::gather_trace(recorder_, grid_.world());
  if (progress_) progress_->finish();
  if (!speaks()) return;
  const double trained = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0);
  const double speed = trained > 0 ? static_cast<double>(attempt_tokens_) / trained : 0;
  nlohmann::json times;
  for (const auto& s : sections)
    times[s.name] = {{"min", s.minimum}, {"average", s.average}, {"max", s.maximum}};
  const parallel::StageMemory& activations = replica_.engine().memory();
  const std::size_t stash = activations.stash_high_water(), work = activations.work_high_water();
  const parallel::StagePlan& layout = activations.plan();
  record_->write_trace(trace.spans_by_rank);
  record_->write_summary(
      {{"steps", step_},
       {"steps_of_attempt", step_seconds_.size()},
       {"tokens_of_attempt", attempt_tokens_},
       {"seconds", total},
       {"loss", last_loss_},
       {"validation_loss", last_evaluation_},
       {"sections", times},
       {"memory", memory_json(memory)},
       {"communication", traffic},
       {"high_water",
        {{"stash", {{"predicted", layout.stash_bytes()}, {"measured", stash}}},
         {"workspace", {{"predicted", layout.work_bytes()}, {"measured", work}}}}},
       {"figure_of_merit", speed}});
  if (!progress_) return;
  say("");
  say(report::timing_table(sections, total));
  say(report::memory_table(memory));
  say(fmt::format(
      "arena high-water marks, predicted and measured: stash {} and {}, work space {} and {} bytes",
      layout.stash_bytes(), stash, layout.work_bytes(), work));
  for (const auto& [name, axis] : traffic.items()) {
    say(fmt::format("communication, {} axis: {:.3f} MB sent per step and rank, in {:.1f} ms", name,
                    axis.at("bytes_per_step").get<double>() / 1e6,
                    1e3 * axis.at("seconds_per_step").get<double>()));
  }
  if (speed > 0 && peak_ > 0) {
    say(fmt::format("MFU {:.1f} % of the {} peak of {:.1f} GFLOP/s",
                    100 * speed * model_.flops_per_token() / peak_,
                    config_.train.peak == "measured" ? "measured" : "nominal", peak_ / 1e9));
  }
  say("record: " + record_->folder().string());
  if (speed > 0) say(report::figure_of_merit(speed));
}

}  // namespace trireme::train
