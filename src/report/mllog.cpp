#include <algorithm>
#include <cerrno>
#include <chrono>

#include <fcntl.h>

#include "trireme/core/error.hpp"
#include "trireme/core/json.hpp"
#include "trireme/report/formats.hpp"

namespace trireme::report {
namespace {

using nlohmann::json;

constexpr const char* point = "POINT_IN_TIME";
constexpr const char* start = "INTERVAL_START";
constexpr const char* end = "INTERVAL_END";

/// The value at a path of keys, null where there is none.
json at(const json& object, std::initializer_list<const char*> keys) {
  const json* value = &object;
  for (const char* key : keys) {
    if (!value->is_object() || !value->contains(key)) return nullptr;
    value = &value->at(key);
  }
  return *value;
}

std::string platform_of(const json& run) {
  const json hosts = at(run, {"hosts"});
  if (!hosts.is_array() || hosts.empty()) return "unknown";
  return fmt::format("{} x {}", hosts.size(), hosts.front().value("cpu", "unknown"));
}

/// A type of config as MLPerf's rules spell it.
json type_name(const json& type) { return type == "bf16" ? json("bfloat16") : type; }

/// What the rules call the course of a learning rate that first grows linearly.
json schedule_name(const json& schedule) {
  return schedule == "cosine" ? json("cosine with linear warmup") : schedule;
}

/// The steps over which the learning rate falls, as optim::learning_rate has them
/// (optim/optimizer.hpp).
std::int64_t decay_steps(const json& optim, std::int64_t steps) {
  const std::string schedule = optim.value("schedule", "constant");
  const auto given = optim.value("decay_steps", std::int64_t{0});
  if (schedule == "constant") return 0;
  if (given > 0) return given;
  if (schedule == "wsd") return steps / 10;
  TRIREME_ASSERT(schedule == "cosine" || schedule == "linear", "learning-rate schedule {}",
                 schedule);
  return std::max<std::int64_t>(0, steps - optim.value("warmup_steps", std::int64_t{0}));
}

/// The learning rate at which the schedule's fall ends, of `optim`: its section of a run's
/// configuration.
double end_learning_rate(const json& optim) {
  const double peak = optim.value("learning_rate", 0.0);
  const bool falls = optim.value("schedule", "constant") != "constant";
  return falls ? peak * optim.value("final_learning_rate", 1.0) : peak;
}

/// The configuration file that values of the run come from, "none" where there is none.
std::string config_file(const json& run) {
  const json fields = at(run, {"config_provenance"});
  for (const json& value : fields) {
    if (at(value, {"source"}) == "file") {
      const std::string origin = value.value("origin", "");
      return origin.substr(0, origin.find_last_of(':'));
    }
  }
  return "none";
}

}  // namespace

MlLog::MlLog(const std::filesystem::path& file, ReportConfig config)
    : path_(file),
      config_(std::move(config)),
      file_(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw_file_error(path_, "create", errno);
  // The key is required, but only root can clear a machine's caches.
  event(point, "cache_clear", false, __LINE__);
  event(start, "init_start", nullptr, __LINE__);
}

MlLog::~MlLog() {
  try {
    if (running_) end_run(last_step_, "aborted");
  } catch (const std::exception&) {
    // A file without its last line reports an aborted run too.
    running_ = false;
  }
}

// One write per line, so that a killed run leaves whole ones.
void MlLog::event(const char* type, const char* key, const json& value, int line, json metadata) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  last_ms_ =
      std::max<std::int64_t>(last_ms_, std::chrono::duration_cast<milliseconds>(now).count());
  metadata["file"] = "mllog.cpp";
  metadata["lineno"] = line;
  const nlohmann::ordered_json record{{"namespace", ""},        {"time_ms", last_ms_},
                                      {"event_type", type},     {"key", key},
                                      {"value", finite(value)}, {"metadata", finite(metadata)}};
  const std::string text =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  write_all(file_, path_, ":::MLLOG " + text + "\n");
}

json MlLog::samples(std::int64_t step) const {
  json counts = {{"samples_count", step * batch_}, {"step_num", step}};
  if (epoch_ > 0) counts["epoch_num"] = double(step * batch_) / double(epoch_);
  return counts;
}

void MlLog::begin_run(const json& run) {
  const auto point_event = [&](const char* key, const json& value) {
    event(point, key, value, __LINE__);
  };
  point_event("submission_benchmark", config_.benchmark);
  point_event("submission_org", config_.organization);
  point_event("submission_division", config_.division);
  point_event("submission_status", "research");
  point_event("submission_platform",
              config_.platform == "auto" ? platform_of(run) : config_.platform);
  const json config = at(run, {"config"});
  const json batch = at(config, {"train", "batch"});
  batch_ = batch.is_number_integer() ? batch.get<std::int64_t>() : 0;
  const json micro_batch = at(config, {"train", "micro_batch"});
  const json data = at(run, {"place", "data"});
  point_event("global_batch_size", batch);
  point_event("micro_batch_size", micro_batch);
  if (micro_batch.is_number_integer() && micro_batch > 0 && data.is_number_integer() && data > 0) {
    point_event("gradient_accumulation_steps",
                batch_ / micro_batch.get<std::int64_t>() / data.get<std::int64_t>());
  }
  point_event("max_sequence_length", at(config, {"model", "sequence"}));
  point_event("seed", at(config, {"train", "seed"}));
  const json samples_of_epoch = at(run, {"dataset", "train_samples"});
  epoch_ = samples_of_epoch.is_number_integer() ? samples_of_epoch.get<std::int64_t>() : 0;
  point_event("train_samples", samples_of_epoch);
  point_event("eval_samples", at(run, {"dataset", "eval_samples"}));
  point_event("tensor_parallelism", at(run, {"place", "tensor"}));
  point_event("pipeline_parallelism", at(run, {"place", "pipeline"}));
  const json context = at(run, {"place", "context"});
  point_event("context_parallelism", context.is_number_integer() ? context : json(1));
  // A degree that the rules ask for and no layout has.
  point_event("expert_parallelism", 1);
  point_event("config_filename", config_file(run));
  for (const char* key :
       {"lowest_numerical_precision_in_linear", "lowest_numerical_precision_in_attn",
        "lowest_numerical_precision_in_comm"}) {
    point_event(key, type_name(at(config, {"precision", "compute"})));
  }
  const json optim = at(config, {"optim"});
  point_event("opt_name", at(optim, {"name"}));
  point_event("opt_base_learning_rate", at(optim, {"learning_rate"}));
  point_event("opt_learning_rate_warmup_steps", at(optim, {"warmup_steps"}));
  point_event("opt_learning_rate_decay_schedule", schedule_name(at(optim, {"schedule"})));
  const json steps = at(config, {"train", "steps"});
  if (optim.is_object() && steps.is_number_integer()) {
    point_event("opt_learning_rate_decay_steps", decay_steps(optim, steps.get<std::int64_t>()));
    point_event("opt_end_learning_rate", end_learning_rate(optim));
    point_event("max_steps", steps);
  }
  point_event("opt_gradient_clip_norm", at(optim, {"clip"}));
  point_event("opt_weight_decay", at(optim, {"weight_decay"}));
  if (at(optim, {"name"}) == "adamw") {
    point_event("opt_adamw_beta_1", at(optim, {"beta1"}));
    point_event("opt_adamw_beta_2", at(optim, {"beta2"}));
    point_event("opt_adamw_epsilon", at(optim, {"epsilon"}));
    point_event("opt_adamw_weight_decay", at(optim, {"weight_decay"}));
  }
  event(end, "init_stop", nullptr, __LINE__);
  last_step_ = run.value("first_step", std::int64_t{0});
  running_ = true;
  event(start, "run_start", nullptr, __LINE__);
  event(start, "block_start", nullptr, __LINE__, samples(last_step_));
}

void MlLog::loss(std::int64_t step, double loss) {
  last_step_ = step;
  event(point, "train_loss", loss, __LINE__, samples(step));
}

void MlLog::begin_evaluation(std::int64_t step) {
  evaluating_ = true;
  event(start, "eval_start", nullptr, __LINE__, samples(step));
}

void MlLog::end_evaluation(std::int64_t step, double loss) {
  if (!evaluating_) return;
  evaluating_ = false;
  event(point, "eval_accuracy", loss, __LINE__, samples(step));
  event(end, "eval_stop", nullptr, __LINE__, samples(step));
}

void MlLog::end_run(std::int64_t step, const std::string& status) {
  if (!running_) return;
  running_ = false;
  event(end, "block_stop", nullptr, __LINE__, samples(step));
  json metadata = samples(step);
  metadata["status"] = status;
  event(end, "run_stop", nullptr, __LINE__, metadata);
}

}  // namespace trireme::report
