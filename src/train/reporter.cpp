#include "trireme/train/reporter.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "trireme/data/hash.hpp"
#include "trireme/train/account.hpp"
#include "trireme/train/policies.hpp"
#include "trireme/train/step_prediction.hpp"

namespace trireme::train {

namespace {

/// Of all files of a dataset, by their hashes in its manifest.
std::string content_hash(const data::Manifest& manifest) {
  std::string hashes;
  for (const auto* split : {&manifest.train, &manifest.valid}) {
    for (const data::ShardInfo& shard : *split) hashes += shard.xxh3;
    hashes += '\n';
  }
  return data::hash_text(hashes);
}

nlohmann::json source_json(const data::Corpus::Source& source, const RunConfig& config) {
  nlohmann::json json{{"name", source.name}, {"xxh3", content_hash(source.dataset.manifest())}};
  const auto samples = [&](data::SplitName split, const char* tokens_key, const char* key) {
    const std::int64_t tokens = source.tokens(split);
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

/// The share of each source that has one, by name.
nlohmann::json shares_json(const data::Corpus& corpus, const data::Shares& shares) {
  nlohmann::json json = nlohmann::json::object();
  for (std::size_t i = 0; i < corpus.sources().size(); ++i) {
    if (shares.parts[i] == 0) continue;
    json[corpus.sources()[i].name] =
        static_cast<double>(shares.parts[i]) / static_cast<double>(shares.all);
  }
  return json;
}

/// A dataset, or the sums over a blend's sources, each of them, and its phases.
nlohmann::json dataset_json(const data::Corpus& corpus, const RunConfig& config,
                            std::int64_t samples) {
  if (!corpus.is_blend()) {
    nlohmann::json json = source_json(corpus.sources().front(), config);
    json["name"] = corpus.manifest().name;
    return json;
  }
  nlohmann::json json{{"name", "blend"}};
  const nlohmann::json shares = shares_json(corpus, corpus.order().begun(samples).phase.shares);
  for (std::size_t i = 0; i < corpus.sources().size(); ++i) {
    nlohmann::json source = source_json(corpus.sources()[i], config);
    for (const auto& [key, value] : source.items()) {
      if (value.is_string()) continue;  // name and hash
      json[key] = json.value(key, std::int64_t{0}) + value.get<std::int64_t>();
    }
    source["share"] = shares.value(corpus.sources()[i].name, 0.0);
    json["sources"].push_back(std::move(source));
  }
  for (const data::BlendPhase& phase : corpus.phases()) {
    json["phases"].push_back(
        {{"first_sample", phase.first}, {"shares", shares_json(corpus, phase.shares)}});
  }
  return json;
}

std::string peak_line(const RunConfig& config, double peak) {
  return fmt::format("peak for MFU: {:.1f} GFLOP/s over all ranks ({})", peak / 1e9,
                     config.train.peak == "measured"
                         ? fmt::format("measured: best {} matrix product", config.precision.compute)
                         : "nominal: train.peak");
}

const char* kind_of_peak(const RunConfig& config) {
  return config.train.peak == "measured" ? "measured" : "nominal";
}

/// Of the last steps: the first one and a disturbed one do not count for much.
double median_of_last(const std::vector<double>& seconds) {
  const std::size_t window = std::min<std::size_t>(seconds.size(), 25);
  std::vector<double> recent(seconds.end() - static_cast<std::ptrdiff_t>(window), seconds.end());
  const auto middle = recent.begin() + static_cast<std::ptrdiff_t>(window / 2);
  std::nth_element(recent.begin(), middle, recent.end());
  return *middle;
}

}  // namespace

RunReporter::RunReporter(const Job& job, bool root)
    : job_(job), root_(root), elapsed_(steady_seconds()) {}

void RunReporter::open() {
  if (!root_) return;
  const TrainConfig& train = job_.config.train;
  record_ = std::make_unique<report::RunRecord>(train.output, job_.config.report);
  if (train.quiet) return;
  if (train.progress == "auto") {
    progress_ = std::make_unique<report::ProgressLine>();
    return;
  }
  const bool live =
      select<bool>("train.progress", train.progress, {{"live", true}, {"log", false}});
  progress_ = std::make_unique<report::ProgressLine>(stdout, live);
}

void RunReporter::print(const std::string& line) {
  if (progress_) progress_->print(line);
}

void RunReporter::warn(const std::string& text) {
  if (text.empty() || !root_) return;
  const std::string line = "trireme: warning: " + text;
  if (progress_) return progress_->print(line, stderr);
  fmt::print(stderr, "{}\n", line);
}

void RunReporter::warn_of_graphs(const std::string& refusal) {
  if (!refusal.empty() && !std::exchange(graphs_refused_, true)) warn(refusal);
}

void RunReporter::record(const std::function<void(report::RunRecord&)>& write) {
  if (!record_) return;
  try {
    write(*record_);
  } catch (const Error& error) {  // reported once, and ends nothing
    if (!record_fault_.empty()) return;
    record_fault_ = error.what();
    warn(fmt::format("{}; the run continues, and its record is incomplete from here on",
                     error.what()));
  }
}

void RunReporter::write_trace(const report::Trace& trace) {
  record([&](report::RunRecord& run) { run.write_trace(trace.spans_by_rank); });
}

void RunReporter::begin(const RunStart& start, const Environment& environment,
                        const data::Corpus& corpus) {
  peak_ = start.peak;
  predicted_step_ = start.predicted_step;
  first_step_ = start.step;
  if (!root_) return;
  const RunConfig& config = job_.config;
  const model::ModelConfig& model = config.model;
  const std::int64_t parameters = job_.model.table().elements();
  nlohmann::json run = environment.provenance;
  if (start.extra.is_object()) run.update(start.extra);
  run["config"] = job_.resolved;
  run["config_provenance"] = job_.provenance;
  run["layout"] = start.layout;
  run["place"] = start.place;
  run["device"] = job_.computes.name();
  run["dataset"] = dataset_json(corpus, config, start.samples);
  run["threads_per_rank"] = job_.threads;
  run["parameters"] = parameters;
  run["flops_per_token"] = job_.model.flops_per_token();
  run["peak"] = {{"operations_per_second", peak_},
                 {"kind", kind_of_peak(config)},
                 {"type", config.precision.compute}};
  run["predicted_memory"] = start.predicted_memory;
  run["first_step"] = start.step;
  run["cores_shared"] = environment.shared_cores;
  record([&](report::RunRecord& record) { record.write_run(run); });
  print(fmt::format("trireme {}: {} parameters, {} layers × {} wide, sequence {}, vocabulary {}",
                    TRIREME_VERSION, parameters, model.layers, model.width, model.sequence,
                    model.vocabulary));
  for (const std::string& line : start.lines) print(line);
  warn(job_.computes.warning());
  warn(environment.shared_cores);
  for (const std::string& warning : start.warnings) warn(warning);
  for (const std::string& text : start.notes) note(text);
  if (peak_ > 0) print(peak_line(config, peak_));
  if (predicted_step_.is_null()) return;
  print(fmt::format("predicted: {:.4g} s a step ({})", predicted_step_.at("seconds").get<double>(),
                    config.train.predict));
}

void RunReporter::step(report::StepMetrics metrics, bool notable) {
  const RunConfig& config = job_.config;
  const auto tokens = static_cast<double>(config.train.batch * config.model.sequence);
  metrics.tokens_per_second = tokens / metrics.seconds;
  if (peak_ > 0) metrics.mfu = metrics.tokens_per_second * job_.model.flops_per_token() / peak_;
  if (metrics.mfu > 1) {  // impossible
    if (!std::exchange(peak_too_low_, true)) {
      warn(
          fmt::format("step {}: MFU {:.0f} % is impossible, the {} peak of {:.1f} GFLOP/s is too "
                      "low; such steps have no MFU",
                      metrics.step, 100 * metrics.mfu, kind_of_peak(config), peak_ / 1e9));
    }
    metrics.mfu = 0;
  }
  seconds_.push_back(metrics.seconds);
  last_ = metrics;
  record([&](report::RunRecord& run) { run.write_step(metrics); });
  if (progress_) show(metrics, notable);
}

void RunReporter::show(const report::StepMetrics& metrics, bool notable) {
  const TrainConfig& train = job_.config.train;
  const bool due = metrics.step % train.log_every == 0 || metrics.step == train.steps ||
                   metrics.step == first_step_ + 1 || !metrics.skipped.empty() || notable;
  if (!progress_->terminal() && !due) return;
  const double left = median_of_last(seconds_) * static_cast<double>(train.steps - metrics.step);
  progress_->update(report::step_line(metrics, train.steps, left, progress_->columns()));
}

void RunReporter::begin_evaluation(std::int64_t step) {
  evaluated_step_ = step;
  record([&](report::RunRecord& run) { run.begin_evaluation(step); });
}

void RunReporter::evaluation(std::int64_t step, const Evaluation& found) {
  last_evaluation_ = found.all.mean();
  const auto tokens = static_cast<std::int64_t>(found.all.weight);
  std::map<std::string, double> sources;
  std::string each;
  if (found.sources.size() > 1) {
    for (const auto& [name, sum] : found.sources) {
      sources[name] = sum.mean();
      each += fmt::format("{}{} {:.4f}", each.empty() ? ": " : ", ", name, sum.mean());
    }
  }
  record([&](report::RunRecord& run) {
    run.write_evaluation(step, last_evaluation_, tokens, sources);
  });
  print(fmt::format("step {}  validation loss {:.4f} over {} tokens{}", step, last_evaluation_,
                    tokens, each));
}

void RunReporter::no_evaluation(std::int64_t step, std::int64_t tokens) {
  evaluated_step_ = step;
  const std::int64_t needed = job_.config.model.sequence + 1;
  print("no evaluation: " +
        (tokens < needed
             ? fmt::format("the validation split has {} tokens, a window needs {}", tokens, needed)
             : "no token of the validation split has a loss weight"));
}

void RunReporter::event(std::int64_t step, const std::string& kind, const std::string& text) {
  record([&](report::RunRecord& run) { run.write_event(step, kind, text); });
}

void RunReporter::stop(std::int64_t step, const std::string& why) {
  event(step, "stop", why);
  const RunConfig& config = job_.config;
  stopped_ = fmt::format(
      "stopped at step {} of {}: {}; saved: start again{} to continue (exit code {})", step,
      config.train.steps, why, config.checkpoint.resume == "never" ? " with --resume auto" : "",
      exit_code(Ending::requeue));
}

void RunReporter::failed(std::int64_t step, const std::string& why) noexcept {
  if (!record_) return;
  try {
    record_->write_event(step, "failed", why);
  } catch (const std::exception&) {
    return;  // the error that ends the run is the one to report
  }
}

bool RunReporter::evaluates_at_end() const {
  if (!job_.config.train.evaluate_at_end) return false;
  const auto& source = job_.provenance.at("train.evaluate_at_end").at("source");
  return steps() > 0 || source != config::name_of(config::Source::built_in);
}

void RunReporter::finish(RunSummary summary) {
  if (progress_) progress_->finish();
  if (!root_) return;
  for (report::MemoryRow& row : summary.memory) {
    // Not there: what only a step allocates, and the copy of a save that was not made.
    const bool snapshot = row.name == device::name_of(device::Use::snapshot);
    if (steps() == 0 || (snapshot && row.measured == 0)) row.in_part = true;
  }
  if (!graphs_refused_) warn(refusals_warning(summary.ranks));
  const RunConfig& config = job_.config;
  const double trained = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  const std::int64_t tokens = steps() * config.train.batch * config.model.sequence;
  const double speed = trained > 0 ? static_cast<double>(tokens) / trained : 0;
  const std::int64_t step = first_step_ + steps();
  nlohmann::json json{{"steps", step},
                      {"steps_of_attempt", steps()},
                      {"tokens_of_attempt", tokens},
                      {"seconds", elapsed_()},
                      {"loss", last_.loss},
                      {"validation_loss", last_evaluation_},
                      {"sections", sections_json(summary.sections)},
                      {"memory", memory_json(summary.memory)},
                      {"communication", communication_of(summary.ranks)},
                      {"ranks", summary.ranks},
                      {"resident_peak", summary.resident},
                      {"figure_of_merit", speed}};
  if (summary.peak > 0) {
    json["peak"] = {{"at_start", peak_},
                    {"at_end", summary.peak},
                    {"operations_per_second", std::max(peak_, summary.peak)}};
  }
  if (!predicted_step_.is_null() && steps() > 0) {
    json["step_time"] =
        compare_step_time(predicted_step_, summary.ranks, seconds_, job_.computes.on_host());
  }
  if (summary.extra.is_object()) json.update(summary.extra);
  if (!record_fault_.empty()) json["incomplete"] = record_fault_;
  record(
      [&](report::RunRecord& record) { record.write_summary(json, step == config.train.steps); });
  if (!progress_) return;
  print_tables(summary, json);
  if (!stopped_.empty()) print(stopped_);
}

void RunReporter::print_tables(const RunSummary& summary, const nlohmann::json& json) {
  const double speed = json.at("figure_of_merit");
  print("");
  print(report::timing_table(report::time_account(summary.ranks, elapsed_(), "the run")));
  print(report::memory_table(summary.memory, !job_.computes.on_host()));
  if (summary.resident > 0) {
    print(fmt::format("resident set at most, of any rank: {:.1f} MiB with program and libraries",
                      static_cast<double>(summary.resident) / (1 << 20)));
  }
  for (const auto& [name, group] : json.at("communication").items()) {
    print(fmt::format("communication, {}: {:.3f} MB sent per step and rank, in {:.1f} ms",
                      name == "servers" ? name : name + " axis",
                      group.at("bytes_per_step").get<double>() / 1e6,
                      1e3 * group.at("seconds_per_step").get<double>()));
    if (!group.contains("received_per_step")) continue;
    print(fmt::format("communication, servers: {:.3f} MB received per step and worker",
                      group.at("received_per_step").get<double>() / 1e6));
  }
  for (const std::string& line : summary.lines) print(line);
  if (json.contains("step_time")) {
    for (const std::string& line : step_time_lines(json.at("step_time"))) print(line);
  }
  const bool predicted = report::as_predicted(summary.memory), finite = std::isfinite(last_.loss);
  if (predicted && finite) print_mfu(speed, summary.peak);
  print("record: " + record_->folder().string());
  if (speed <= 0) return;
  if (!predicted) print("no figure of merit: memory measured is not what was predicted (! above)");
  if (!finite) print("no figure of merit: the last loss is not finite");
  print(report::figure_of_merit(predicted && finite ? speed : 0));
}

void RunReporter::print_mfu(double speed, double peak_at_end) {
  const double peak = std::max(peak_, peak_at_end);
  if (speed <= 0 || peak <= 0) return;
  const std::string kind =
      fmt::format("{} {}", kind_of_peak(job_.config), job_.config.precision.compute);
  const std::string both =
      peak_at_end > 0
          ? fmt::format(" ({:.1f} at the start, {:.1f} at the end)", peak_ / 1e9, peak_at_end / 1e9)
          : "";
  const double mfu = 100 * speed * job_.model.flops_per_token() / peak;
  if (mfu > 100) {
    return print(fmt::format("no MFU: {:.1f} % of the {} peak of {:.1f} GFLOP/s{} is impossible",
                             mfu, kind, peak / 1e9, both));
  }
  print(
      fmt::format("MFU {:.1f} % of the {} peak of {:.1f} GFLOP/s{}", mfu, kind, peak / 1e9, both));
}

}  // namespace trireme::train
