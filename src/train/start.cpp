// Where a run begins that takes its model from elsewhere, and on how long windows a model works.
#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/train/run_lock.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

namespace fs = std::filesystem;

bool is_transformers(const fs::path& folder) { return fs::exists(folder / "config.json"); }

bool began_with(const fs::path& step, const std::string& from) {
  const nlohmann::json saved = checkpoint::Reader(step).state().config;
  const nlohmann::json::json_pointer key("/train/from");
  return saved.contains(key) && saved.at(key) == from;
}

/// Rank 0: whether the run folder has a checkpoint of a run that began as `config` says. Throws
/// Error where it has one of another run.
bool has_begun(const RunConfig& config) {
  std::vector<std::string> broken;  // whoever resumes reports them
  const auto newest = checkpoint::newest(config.train.output, &broken);
  if (!newest) return !broken.empty();
  if (began_with(*newest, config.train.from)) return true;
  throw Error(
      "train.from = {}: {} is there already, of a run that did not begin so; name another "
      "train.output",
      config.train.from, newest->string());
}

}  // namespace

model::ModelConfig with_sequence(model::ModelConfig model, std::int64_t sequence) {
  if (sequence == 0) return model;
  model.positions = model.trained_length();
  if (!model.rotary() && sequence > model.positions) {
    throw ConfigError("model.sequence", std::to_string(sequence),
                      fmt::format("the model has learned positions for {} tokens", model.positions),
                      fmt::format("use at most {}", model.positions));
  }
  model.sequence = sequence;
  return model;
}

std::string sequence_warning(const model::ModelConfig& trained, std::int64_t sequence) {
  if (!trained.rotary() || sequence <= trained.trained_length()) return {};
  return fmt::format("model.sequence = {}: the model was trained on at most {} tokens", sequence,
                     trained.trained_length());
}

model::ModelConfig start_model(const RunConfig& config) {
  std::string from = config.train.from;
  std::vector<std::string> broken;  // whoever resumes reports them
  // A run that has begun needs its source no more.
  const auto own = checkpoint::newest(config.train.output, &broken);
  if (own && began_with(*own, from)) from = own->string();
  model::ModelConfig model = is_transformers(from)
                                 ? checkpoint::foreign_model(from)
                                 : model_of(checkpoint::Reader(find_checkpoint(from)));
  model.positions = model.trained_length();
  return model;
}

std::string make_start(const RunConfig& config, comm::Session& session) {
  const std::string& from = config.train.from;
  if (from.empty()) return {};
  if (config.checkpoint.resume != "auto") {
    throw AgreedError(
        "checkpoint.resume = {}: must be auto with train.from, which it excludes; "
        "leave one out",
        config.checkpoint.resume);
  }
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  const RunLock lock(*world, config.train.output);  // until the checkpoint is there
  const std::string source = comm::of_rank_zero(*world, [&]() -> std::string {
    if (has_begun(config)) return {};
    return is_transformers(from) ? from : find_checkpoint(from).string();
  });
  if (source.empty()) return {};
  const nlohmann::json settings{{"train", {{"from", from}}}};
  if (is_transformers(source)) {
    std::string warning;
    std::vector<std::string> skipped;
    checkpoint::import_safetensors(source, config.train.output, *world, versions(), &warning,
                                   settings, &skipped);
    if (!warning.empty()) warning = "without a tokenizer: " + warning;
    for (const std::string& reason : skipped) warning += (warning.empty() ? "" : "; ") + reason;
    return warning;
  }
  std::optional<checkpoint::Reader> reader;
  model::ModelConfig model;
  comm::agree(*world, [&] {
    reader.emplace(source);
    model = model_of(*reader);
  });
  checkpoint::import_weights(*reader, model, config.train.output, *world, versions(), settings);
  return {};
}

}  // namespace trireme::train
