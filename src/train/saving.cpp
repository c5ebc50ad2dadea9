// What a run goes on from, and what it leaves to be gone on from.
#include <algorithm>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/checkpoint/pieces.hpp"
#include "trireme/checkpoint/tokenizer.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/report/record.hpp"

#include "trainer.hpp"

namespace trireme::train {

namespace {

/// By their names alone, so that all ranks see the same.
bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto plain = [](const std::filesystem::path& path) {
    return (std::filesystem::absolute(path) / "").lexically_normal();
  };
  return plain(a) == plain(b);
}

constexpr const char* outer_momentum_name = "average.outer_momentum";

Error damaged(const checkpoint::Reader& reader, const char* what) {
  return Error("{}: its {} damaged; use another checkpoint", reader.folder().string(), what);
}

/// Updates done when the optimizer's state was last zeroed. Throws Error where it is damaged.
std::int64_t states_begin_of(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object() || !extra.contains("states_begin")) return 0;
  const nlohmann::json& begin = extra.at("states_begin");
  const bool possible = begin.is_number_integer() && begin.get<std::int64_t>() >= 0 &&
                        begin.get<std::int64_t>() <= reader.state().step;
  if (!possible) throw damaged(reader, "states_begin is");
  return begin.get<std::int64_t>();
}

/// Throws Error where another optimizer than the configuration's made the checkpoint.
void compare_optimizers(const optim::OptimConfig& config, const checkpoint::Reader& reader) {
  if (imported(reader)) return;
  for (const std::string& name : optim::Optimizer::state_names(config)) {
    const auto of_it = [&](const auto& entry) { return entry.name.starts_with(name + "/"); };
    if (std::ranges::any_of(reader.tensors(), of_it)) continue;
    throw Error(
        "optim.name = {}: the checkpoint {} has no {}, as another optimizer made it; use that, or "
        "another train.output",
        config.name, reader.folder().string(), name);
  }
}

/// Throws Error where the checkpoint's model is not the configuration's.
void compare_models(const model::ModelConfig& config, const checkpoint::Reader& reader) {
  const model::ModelConfig saved = model_of(reader);
  nlohmann::json theirs, ours;
  {
    model::ModelConfig copies[] = {saved, config};
    for (int i = 0; i < 2; ++i) {
      config::Fields fields;
      fields.section("model", copies[i]);
      (i == 0 ? theirs : ours) = fields.to_json().at("model");
    }
  }
  for (const auto& [key, value] : ours.items()) {
    if (key == "preset" || key == "dropout" || key == "attention_dropout" ||
        theirs.at(key) == value)
      continue;
    throw Error("model.{} = {}: the checkpoint {} has {}; use that, or another train.output", key,
                value.dump(), reader.folder().string(), theirs.at(key).dump());
  }
}

}  // namespace

bool imported(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  return extra.is_object() && extra.value(checkpoint::weights_only, false);
}

void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded) {
  // As that of a new model, whatever was read before.
  if (imported(reader)) return checkpoint::clear_pieces(state, flat);
  checkpoint::load_pieces(reader, prefix, state, flat, sharded);
}

std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& broken) {
  const std::string& resume = config.checkpoint.resume;
  return comm::of_rank_zero(world, [&] {
    const auto newest = checkpoint::newest(config.train.output, &broken);
    std::string own = newest ? newest->string() : std::string();
    if (resume == "auto") return own;
    const std::string mend = "name another train.output, or move its checkpoints away";
    if (resume == "never") {
      if (own.empty()) return own;
      throw Error("checkpoint.resume = never: {} is there already; {}", own, mend);
    }
    const std::filesystem::path named = find_checkpoint(resume);
    if (own.empty() || same_folder(named, own)) return named.string();
    // The same command as the first time, of a run that began elsewhere and was stopped.
    if (!same_folder(named.parent_path(), config.train.output)) {
      broken.push_back(fmt::format("{}: {} is there already", named.string(), own));
      return own;
    }
    throw Error("checkpoint.resume = {}: {} is newer; {}", named.string(), own, mend);
  });
}

std::string load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                        const std::function<void(const std::string& folder)>& load,
                        const std::function<void(const std::string& line)>& tell) {
  for (;;) {
    comm::agree(world, [&] {
      const checkpoint::Reader reader(folder);
      compare_models(config.model, reader);
      compare_optimizers(config.optim, reader);
    });
    try {
      comm::agree(world, [&] { load(folder); });
      return folder;
    } catch (const AgreedError& error) {  // its data are damaged
      const std::string older = comm::of_rank_zero(world, [&] {
        const std::int64_t step = checkpoint::Reader(folder).state().step;
        const auto found = checkpoint::newest(config.train.output, nullptr, step - 1);
        return found ? found->string() : std::string();
      });
      if (config.checkpoint.resume != "auto" || older.empty()) throw;
      tell(error.what());
      folder = older;
    }
  }
}

ResumePoint resume_point(const RunConfig& config, const checkpoint::Reader& reader) {
  const checkpoint::State& state = reader.state();
  ResumePoint point{.folder = reader.folder().string(),
                    .step = state.step,
                    .samples = state.samples,
                    .states_begin = states_begin_of(reader),
                    .own = same_folder(reader.folder().parent_path(), config.train.output)};
  if (point.samples != point.step * config.train.batch) {
    point.notes.push_back(
        fmt::format("{} samples in {} steps so far, train.batch = {} from the next one on",
                    point.samples, point.step, config.train.batch));
  }
  const auto seed = static_cast<std::uint64_t>(config.train.seed);
  if (!imported(reader) && state.seed != seed) {
    point.notes.push_back(
        fmt::format("train.seed = {}, and {} before: sample order and dropout are other ones from "
                    "the next step on",
                    seed, state.seed));
  }
  return point;
}

void take_tokenizer(const checkpoint::Reader& reader, const data::Dataset& dataset,
                    data::StoredTokenizer& tokenizer, std::vector<std::string>& notes) {
  const auto theirs = checkpoint::kept_tokenizer(reader);
  const data::Manifest& ours = dataset.manifest();
  tokenizer = data::stored_tokenizer(ours, dataset.folder());
  if (!theirs) return;
  if (ours.tokenizer == "none") {
    tokenizer = data::stored_tokenizer(*theirs, reader.folder());
  } else if (ours.tokenizer != theirs->tokenizer ||
             ours.tokenizer_details != theirs->tokenizer_details) {
    notes.push_back(fmt::format(
        "the dataset {} has another tokenizer ({}) than the checkpoint {} ({})",
        dataset.folder().string(), ours.tokenizer, reader.folder().string(), theirs->tokenizer));
  }
}

void Trainer::resume(std::string folder) {
  std::vector<std::string> notes;
  std::int64_t rounded_for = 0;
  folder = load_newest(
      config_, grid_.world(), std::move(folder),
      [&](const std::string& found) {
        notes = load(found);
        rounded_for = rounding_of(found);
      },
      [this](const std::string& line) { say("passed over: " + line); });
  replica_.refresh(rounded_for);
  say(fmt::format("resumed from {}: step {}", folder, step_));
  for (const std::string& note : notes) say("note: " + note);
}

std::vector<std::string> Trainer::load(const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
  const state::ModelState& state = replica_.state();
  const bool own = servers_ == nullptr;  // or servers load, and refresh() brings the values
  // A damaged checkpoint may have been read in part before.
  health_ = Health(config_.train.outlier);
  loss_scale_ = optim::LossScale(config_.precision.compute == "fp16");
  if (!own && is_root()) servers_->worker->work(load_work, folder.string());
  if (own) {
    checkpoint::load_pieces(reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
  }
  std::vector<std::string> notes;
  const bool workers = load_workers(reader, notes);  // have states of their own
  for (const auto& kept : replica_.optimizer().states()) {
    if (!own) break;
    load_optimizer(reader, kept_name(kept.name, workers), state, kept.flat, shards_state());
  }
  load_outer_momentum(reader, notes);
  const ResumePoint point = resume_point(config_, reader);
  step_ = point.step;
  samples_ = point.samples;
  states_begin_ = point.states_begin;
  // A checkpoint of another run folder is not this one's: it will have its own.
  if (point.own) saved_step_ = step_;
  saved_folder_ = point.folder;
  notes.insert(notes.end(), point.notes.begin(), point.notes.end());
  if (is_root()) take_tokenizer(reader, dataset_, tokenizer_, notes);
  return notes;
}

/// What stochastic rounding of the checkpoint's weights went by: not its step, where the last ones
/// were skipped.
std::int64_t Trainer::rounding_of(const std::filesystem::path& folder) const {
  const checkpoint::Reader reader(folder);
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object() || !extra.contains("rounded_for")) return reader.state().step;
  const nlohmann::json& rounded_for = extra.at("rounded_for");
  if (!rounded_for.is_number_integer()) {
    throw Error("{}: its rounded_for is damaged; use another checkpoint", folder.string());
  }
  return rounded_for.get<std::int64_t>();
}

std::string Trainer::kept_name(const std::string& state, bool own) const {
  const int worker = data_group_.rank();
  return own && worker > 0 ? fmt::format("worker-{}/{}", worker, state) : state;
}

nlohmann::json Trainer::health_json() const {
  nlohmann::json json{{"health", health_.to_json()}};
  if (loss_scale_.dynamic()) {
    json["loss_scale"] = {{"value", loss_scale_.value()},
                          {"steps_since_change", loss_scale_.steps_since_change()}};
  }
  return json;
}

void Trainer::load_health(const nlohmann::json& kept, const checkpoint::Reader& reader) {
  if (kept.contains("health")) health_.from_json(kept.at("health"));
  if (!kept.contains("loss_scale")) return;
  const nlohmann::json& scale = kept.at("loss_scale");
  const bool whole = scale.is_object() && scale.contains("value") &&
                     scale.contains("steps_since_change") && scale.at("value").is_number() &&
                     scale.at("steps_since_change").is_number_integer();
  if (!whole) throw damaged(reader, "loss_scale is");
  loss_scale_.restore(scale.at("value").get<double>(),
                      scale.at("steps_since_change").get<std::int64_t>());
}

void Trainer::keep_workers(checkpoint::State& state) const {
  state.extra["workers"] = {{"each", report::gather_json(health_json(), data_group_)},
                            {"own_states", own_states()}};
}

bool Trainer::load_workers(const checkpoint::Reader& reader, std::vector<std::string>& notes) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object()) return false;
  if (!extra.contains("workers")) {
    load_health(extra, reader);
    return false;
  }
  const nlohmann::json& workers = extra.at("workers");
  const bool whole = workers.is_object() && workers.contains("each") &&
                     workers.at("each").is_array() && workers.contains("own_states") &&
                     workers.at("own_states").is_boolean();
  if (!whole) throw damaged(reader, "workers are");
  const nlohmann::json& each = workers.at("each");
  const bool same = averaging_ && std::ssize(each) == data_group_.size();
  const nlohmann::json& own = same ? each.at(static_cast<std::size_t>(data_group_.rank())) : extra;
  if (!own.is_object()) throw damaged(reader, "workers are");
  load_health(own, reader);
  const bool own_states = workers.at("own_states").get<bool>();
  if (own_states && !same) {
    notes.push_back(fmt::format(
        "its {} workers had optimizer states of their own: all go on from the first one's",
        each.size()));
  }
  return own_states && same;
}

void Trainer::load_outer_momentum(const checkpoint::Reader& reader,
                                  std::vector<std::string>& notes) {
  if (!averaging_ || !averaging_->outer_momentum()) return;
  const Tensor& momentum = averaging_->outer_momentum();
  const std::string prefix = std::string(outer_momentum_name) + "/";
  if (reader.find(prefix + model_.table().rows().front().name) != nullptr) {
    return checkpoint::load_pieces(reader, outer_momentum_name, replica_.state(), momentum, false);
  }
  replica_.ops().fill(momentum, 0);
  notes.emplace_back("it has no momentum of an outer optimizer, which begins at zero");
}

std::vector<checkpoint::Piece> Trainer::pieces() const {
  std::vector<checkpoint::Piece> pieces;
  const state::ModelState& state = replica_.state();
  const checkpoint::Writers writers{data_group_.rank(), data_group_.size()};
  checkpoint::append_pieces(pieces, "parameters", state, state.parameters(),
                            state.parameters_sharded(), writers);
  for (const auto& kept : replica_.optimizer().states()) {
    checkpoint::append_pieces(pieces, kept_name(kept.name, own_states()), state, kept.flat,
                              shards_state(), own_states() ? checkpoint::Writers{} : writers);
  }
  if (averaging_ && averaging_->outer_momentum()) {
    checkpoint::append_pieces(pieces, outer_momentum_name, state, averaging_->outer_momentum(),
                              false, writers);
  }
  return pieces;
}

void Trainer::save(Failure failure) {
  settle_save(failure);  // one at a time
  check_placement();     // what is damaged must not become the good checkpoint
  const comm::Watchdog::Pause pause(*watchdog_);
  count_traffic();
  const Section section(recorder_, "checkpoint");
  const auto begin = Clock::now();
  checkpoint::State state{.step = step_,
                          .samples = samples_,
                          .seed = static_cast<std::uint64_t>(config_.train.seed),
                          .config = resolved_,
                          .versions = versions(),
                          .extra = health_json()};
  if (states_begin_ > 0) state.extra["states_begin"] = states_begin_;
  if (averaging_) keep_workers(state);
  if (config_.precision.rounding == "stochastic") {
    state.extra["rounded_for"] = replica_.rounded_for();
  }
  checkpoint::keep_tokenizer(state, tokenizer_);
  checkpoint::FileLayout files;
  if (config_.checkpoint.files == "node") files.nodes = session_.nodes();
  const bool background = config_.checkpoint.async && failure == Failure::warns;
  attempt_save(failure, [&] {
    if (servers_ != nullptr) {
      return note_saved(
          comm::of_rank_zero(grid_.world(),
                             [&] { return servers_->worker->work(save_work, to_text(state)); }),
          step_);
    }
    device::Device& device = replica_.state().optimizer_device();
    if (!background && device.is_host()) {
      note_saved(checkpoint::save(config_.train.output, state, pieces(), grid_.world(), files),
                 step_);
      return;
    }
    auto save = std::make_unique<checkpoint::Save>(config_.train.output, state, pieces(), device,
                                                   grid_.world(), ledger_, files);
    if (!background) return note_saved(save->finish(), step_);
    pending_since_ = begin;
    pending_save_ = std::move(save);
  });
  grid_.reset_traffic();
  saved_at_ = Clock::now();
  save_seconds_ = std::max(save_seconds_, seconds_since(begin));
}

void Trainer::settle_save(Failure failure) {
  if (!pending_save_) return;
  const comm::Watchdog::Pause pause(*watchdog_);
  count_traffic();
  const Section section(recorder_, "checkpoint");
  const std::unique_ptr<checkpoint::Save> save = std::move(pending_save_);
  attempt_save(failure, [&] { note_saved(save->finish(), save->step()); });
  save_seconds_ = std::max(save_seconds_, seconds_since(pending_since_));
  grid_.reset_traffic();
}

void Trainer::attempt_save(Failure failure, const std::function<void()>& work) {
  try {
    work();
  } catch (const AgreedError& error) {  // the same on every rank
    if (failure == Failure::stops || config_.checkpoint.on_failure == "stop") throw;
    record([&](report::RunRecord& run) { run.write_event(step_, "save failed", error.what()); });
    say(fmt::format("warning: {}; training goes on", error.what()));
  }
}

void Trainer::note_saved(const std::filesystem::path& folder, std::int64_t step) {
  saved_step_ = step;
  saved_folder_ = folder.string();
  if (!is_root()) return;
  record([&](report::RunRecord& run) { run.write_event(step_, "save", saved_folder_); });
  say("saved " + saved_folder_);
  try {
    checkpoint::prune(config_.train.output, config_.checkpoint.keep, step);
  } catch (const Error& error) {  // of rank 0 alone, and nothing is lost by it
    say(fmt::format("warning: {}; tried again after the next save", error.what()));
  }
}

}  // namespace trireme::train
