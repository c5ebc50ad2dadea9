#include "trireme/train/checkpointer.hpp"

#include <algorithm>
#include <limits>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/pieces.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/train/setup.hpp"

namespace trireme::train {

namespace {

/// By their names alone, so that all ranks see the same.
bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto plain = [](const std::filesystem::path& path) {
    return (std::filesystem::absolute(path) / "").lexically_normal();
  };
  return plain(a) == plain(b);
}

Error damaged(const checkpoint::Reader& reader, const std::string& what) {
  return Error("{}: its {} damaged; use another checkpoint", reader.folder().string(), what);
}

/// Whether the checkpoint has weights alone: then the optimizer's state begins at zero.
bool imported(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  return extra.is_object() && extra.value(checkpoint::weights_only, false);
}

/// A whole number that the checkpoint keeps, else `absent`. Throws Error where it is damaged.
std::int64_t kept_number(const checkpoint::Reader& reader, const char* key, std::int64_t absent,
                         std::int64_t least, std::int64_t most) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.contains(key)) return absent;
  const nlohmann::json& number = extra.at(key);
  const bool possible = number.is_number_integer() && number.get<std::int64_t>() >= least &&
                        number.get<std::int64_t>() <= most;
  if (!possible) throw damaged(reader, fmt::format("{} is", key));
  return number.get<std::int64_t>();
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

/// Throws Error that lists every setting of the model in which the checkpoint's differs.
void compare_models(const model::ModelConfig& config, const checkpoint::Reader& reader) {
  const model::ModelConfig trained = model_of(reader);
  const auto json_of = [](model::ModelConfig model) {
    model.positions = model.rotary() ? 0 : model.trained_length();
    config::Fields fields;
    fields.section("model", model);
    return fields.to_json().at("model");
  };
  const nlohmann::json theirs = json_of(trained), ours = json_of(config);
  std::string differing;
  for (const auto& [key, value] : ours.items()) {
    if (key == "preset" || key == "dropout" || key == "attention_dropout" || key == "sequence" ||
        theirs.at(key) == value)
      continue;
    differing += fmt::format("{}model.{} = {} and not {}", differing.empty() ? "" : ", ", key,
                             theirs.at(key).dump(), value.dump());
  }
  if (differing.empty()) return;
  throw Error("the checkpoint {} has {}; use that, or another train.output",
              reader.folder().string(), differing);
}

/// Whether auxiliary files and token ids of a checkpoint that kept `theirs` fit `tokenizer`.
bool belong_to(const checkpoint::AuxiliaryFiles& kept, const data::StoredTokenizer& tokenizer,
               const std::optional<data::Manifest>& theirs) {
  if (theirs) return tokenizer.description.at("tokenizer_details") == theirs->tokenizer_details;
  if (tokenizer.file.empty()) return true;
  return std::ranges::any_of(kept.files, [&](const checkpoint::State::Attachment& file) {
    return file.name == tokenizer.file && file.content == tokenizer.content;
  });
}

}  // namespace

void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded) {
  // As that of a new model, whatever was read before.
  if (imported(reader)) return checkpoint::clear_pieces(state, flat);
  checkpoint::load_pieces(reader, prefix, state, flat, sharded);
}

std::string resume_folder(const RunConfig& config, std::vector<std::string>& passed_over) {
  const std::string& resume = config.checkpoint.resume;
  const auto newest = checkpoint::newest(config.train.output, &passed_over);
  std::string own = newest ? newest->string() : std::string();
  if (resume == "auto") {
    if (!own.empty() || passed_over.empty()) return own;
    throw Error(
        "{}; no checkpoint of {} is whole: restore one, or start from the beginning with "
        "--resume never, which keeps them aside",
        passed_over.front(), config.train.output);
  }
  const std::string mend = "name another train.output, or move its checkpoints away";
  if (resume == "never") {
    if (own.empty()) return own;
    throw Error("checkpoint.resume = never: {} is there already; {}", own, mend);
  }
  const std::filesystem::path named = find_checkpoint(resume);
  if (own.empty() || same_folder(named, own)) return named.string();
  // The same command as the first time, of a run that began elsewhere and was stopped.
  if (!same_folder(named.parent_path(), config.train.output)) {
    passed_over.push_back(fmt::format("{}: {} is there already", named.string(), own));
    return own;
  }
  throw Error("checkpoint.resume = {}: {} is newer; {}", named.string(), own, mend);
}

std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& passed_over) {
  return comm::of_rank_zero(world, [&] { return resume_folder(config, passed_over); });
}

void check_checkpoint(const RunConfig& config, const checkpoint::Reader& reader) {
  compare_models(config.model, reader);
  compare_optimizers(config.optim, reader);
}

void LoadProgress::follow(checkpoint::Reader& reader) {
  reader.report_reads([this](std::int64_t bytes) {
    constexpr double megabyte = 1e6;
    bytes_ += bytes;
    phase_.show(-1, fmt::format("{:.0f} MB", static_cast<double>(bytes_) / megabyte));
  });
}

void load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                 const std::function<void(const checkpoint::Reader& reader)>& load,
                 const std::function<void(const std::string& line)>& report,
                 report::ProgressLine* line) {
  LoadProgress progress(line);
  for (;;) {
    comm::agree(world, [&] { check_checkpoint(config, checkpoint::Reader(folder)); });
    try {
      return comm::agree(world, [&] {
        checkpoint::Reader reader(folder);
        progress.follow(reader);
        load(reader);
      });
    } catch (const AgreedError& error) {  // its data are damaged
      const std::string older = comm::of_rank_zero(world, [&] {
        const std::int64_t step = checkpoint::Reader(folder).state().step;
        const auto found = checkpoint::newest(config.train.output, nullptr, step - 1);
        return found ? found->string() : std::string();
      });
      if (config.checkpoint.resume != "auto" || older.empty()) throw;
      report(error.what());
      folder = older;
    }
  }
}

ResumePoint resume_point(const RunConfig& config, const checkpoint::Reader& reader) {
  const checkpoint::State& state = reader.state();
  const model::ModelConfig trained = model_of(reader);
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  ResumePoint point{
      .folder = reader.folder().string(),
      .position = {.step = state.step,
                   .samples = state.samples,
                   .states_begin = kept_number(reader, "states_begin", 0, 0, state.step)},
      // Not its step, where the last ones were skipped.
      .rounded_for = kept_number(reader, "rounded_for", state.step, -any, any),
      .own = same_folder(reader.folder().parent_path(), config.train.output),
      .trained_length = trained.trained_length(),
      .notes = {},
      .warning = sequence_warning(trained, config.model.sequence),
      .config = state.config,
      .blend = state.extra.is_object() ? state.extra.value("blend", nlohmann::json()) : nullptr,
      .packed = state.extra.is_object() ? state.extra.value("packed", nlohmann::json()) : nullptr,
      .data = state.config.value("/data/path"_json_pointer, "")};
  if (!imported(reader) && trained.sequence != config.model.sequence) {
    point.notes.push_back(
        fmt::format("model.sequence = {}, and {} before: sample order is another one from the next "
                    "step on",
                    config.model.sequence, trained.sequence));
  }
  if (state.samples != state.step * config.train.batch) {
    point.notes.push_back(
        fmt::format("{} samples in {} steps so far, train.batch = {} from the next one on",
                    state.samples, state.step, config.train.batch));
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

std::vector<std::string> changed_settings(const nlohmann::json& old, const nlohmann::json& now) {
  constexpr std::string_view of_the_start[] = {"checkpoint.resume", "model.preset",
                                               "train.output",      "train.progress",
                                               "train.quiet",       "train.stop_after"};
  std::vector<std::string> changed;
  if (!old.is_object()) return changed;
  for (const auto& [section, keys] : now.items()) {
    const auto before = old.find(section);
    if (before == old.end() || !before->is_object()) continue;
    for (const auto& [name, value] : keys.items()) {
      const auto found = before->find(name);
      const std::string key = fmt::format("{}.{}", section, name);
      if (found == before->end() || *found == value) continue;
      if (std::ranges::find(of_the_start, key) != std::end(of_the_start)) continue;
      changed.push_back(fmt::format("{} {} → {}", key, found->dump(), value.dump()));
    }
  }
  return changed;
}

data::StoredTokenizer choose_tokenizer(const checkpoint::Reader& reader,
                                       const data::Dataset& dataset,
                                       std::vector<std::string>& notes) {
  const auto theirs = checkpoint::kept_tokenizer(reader);
  const data::Manifest& ours = dataset.manifest();
  if (theirs && ours.tokenizer == "none") return data::stored_tokenizer(*theirs, reader.folder());
  if (theirs && (ours.tokenizer != theirs->tokenizer ||
                 ours.tokenizer_details != theirs->tokenizer_details)) {
    notes.push_back(fmt::format(
        "the dataset {} has another tokenizer ({}) than the checkpoint {} ({})",
        dataset.folder().string(), ours.tokenizer, reader.folder().string(), theirs->tokenizer));
  }
  return data::stored_tokenizer(ours, dataset.folder());
}

std::optional<KeptWorkers> kept_workers(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.contains("workers")) return std::nullopt;
  const nlohmann::json& workers = extra.at("workers");
  const bool whole = workers.contains("each") && workers.at("each").is_array() &&
                     workers.contains("own_states") && workers.at("own_states").is_boolean();
  if (!whole) throw damaged(reader, "workers are");
  const nlohmann::json& each = workers.at("each");
  if (!std::ranges::all_of(each, [](const auto& worker) { return worker.is_object(); })) {
    throw damaged(reader, "workers are");
  }
  return KeptWorkers{{each.begin(), each.end()}, workers.at("own_states").get<bool>()};
}

Checkpointer::Checkpointer(const Job& job, const data::Corpus& corpus, RunReporter& reporter,
                           std::function<double()> now)
    : job_(job), corpus_(corpus), reporter_(reporter), now_(std::move(now)), saved_at_(now_()) {}

void Checkpointer::take_tokenizer() {
  tokenizer_ = data::stored_tokenizer(corpus_.manifest(), corpus_.dataset().folder());
}

void Checkpointer::take_tokenizer(const checkpoint::Reader& reader,
                                  std::vector<std::string>& notes) {
  tokenizer_ = choose_tokenizer(reader, corpus_.dataset(), notes);
  auxiliary_files_ = checkpoint::kept_auxiliary_files(reader);
  if (!belong_to(auxiliary_files_, tokenizer_, checkpoint::kept_tokenizer(reader)))
    auxiliary_files_ = {};
}

void Checkpointer::resumed(const ResumePoint& point) {
  // A checkpoint of another run folder is not this one's: it will have its own.
  if (point.own) saved_step_ = point.position.step;
  saved_folder_ = point.folder;
  newest_step_ = point.position.step;
  trained_length_ = point.trained_length;
  reporter_.print(fmt::format("resumed from {}: step {}", point.folder, point.position.step));
  for (const std::string& note : point.notes) reporter_.note(note);
  reporter_.warn(point.warning);
  if (!point.blend_change.empty()) {
    reporter_.note(point.blend_change);
    reporter_.event(point.position.step, "changed", point.blend_change);
  }
  for (const std::string& change : changed_settings(point.config, job_.resolved)) {
    reporter_.note("changed since the checkpoint: " + change);
    reporter_.event(point.position.step, "changed", change);
  }
}

checkpoint::State Checkpointer::state_at(const Position& position, nlohmann::json extra) const {
  checkpoint::State state{.step = position.step,
                          .samples = position.samples,
                          .seed = static_cast<std::uint64_t>(job_.config.train.seed),
                          .config = job_.resolved,
                          .versions = versions(),
                          .extra = std::move(extra)};
  if (nlohmann::json blend = corpus_.kept(position.samples); !blend.is_null()) {
    state.extra["blend"] = std::move(blend);
  }
  if (nlohmann::json packed = corpus_.packed(position.samples); !packed.is_null()) {
    state.extra["packed"] = std::move(packed);
  }
  if (position.states_begin > 0) state.extra["states_begin"] = position.states_begin;
  if (trained_length_ > job_.config.model.trained_length()) {
    state.config["model"]["positions"] = trained_length_;
  }
  checkpoint::keep_tokenizer(state, tokenizer_);
  checkpoint::keep_auxiliary_files(state, auxiliary_files_);
  return state;
}

void Checkpointer::save(const checkpoint::State& state, Failure failure,
                        const std::function<StartedSave()>& write) {
  const double begin = now_();
  attempt(failure, state.step, [&] {
    StartedSave save = write();
    if (save.pending == nullptr) return note_saved(save.folder, state.step, state.step);
    pending_since_ = begin;
    pending_ = std::move(save.pending);
  });
  restart_clock();
  longest_ = std::max(longest_, now_() - begin);
}

void Checkpointer::settle(Failure failure, std::int64_t step) {
  if (!pending_) return;
  const std::unique_ptr<checkpoint::Save> save = std::move(pending_);
  attempt(failure, step, [&] { note_saved(save->finish(), save->step(), step); });
  longest_ = std::max(longest_, now_() - pending_since_);
}

void Checkpointer::attempt(Failure failure, std::int64_t step, const std::function<void()>& work) {
  try {
    work();
  } catch (const AgreedError& error) {  // the same on every rank
    const bool stops = select<bool>("checkpoint.on_failure", job_.config.checkpoint.on_failure,
                                    {{"continue", false}, {"stop", true}});
    if (failure == Failure::stops || stops) throw;
    failed_ = error.what();
    reporter_.event(step, "save failed", error.what());
    const bool last = step >= job_.config.train.steps;
    reporter_.warn(error.what() + std::string(last ? "" : "; training continues"));
  }
}

void Checkpointer::note_saved(const std::filesystem::path& folder, std::int64_t saved,
                              std::int64_t step) {
  failed_.clear();
  const bool advanced = newest_step_ < sound_step_;  // since the checkpoint before
  saved_step_ = newest_step_ = saved;
  saved_folder_ = folder.string();
  const checkpoint::CheckpointConfig& config = job_.config.checkpoint;
  if (saved < sound_step_) {
    good_folder_ = saved_folder_;
  } else if (config.keep == 1 && advanced) {  // the one before will be removed
    good_folder_.clear();
  }
  if (!reporter_.is_root()) return;
  reporter_.event(step, "save", saved_folder_);
  reporter_.print("saved " + saved_folder_);
  if (!advanced) return;  // an older one may be the last good
  try {
    checkpoint::prune(job_.config.train.output, config.keep, saved);
  } catch (const Error& error) {  // of the root alone, and nothing is lost by it
    reporter_.warn(fmt::format("{}; tried again after the next save", error.what()));
  }
}

void Checkpointer::require_saved() const {
  if (failed_.empty()) return;
  throw AgreedError("the last save failed: {}; {}", failed_, last_good());
}

void Checkpointer::note_sound(std::int64_t step) {
  sound_step_ = step;
  if (newest_step_ < step && !saved_folder_.empty()) good_folder_ = saved_folder_;
}

std::string Checkpointer::last_good() const {
  if (!good_folder_.empty()) return "the last good checkpoint is " + good_folder_;
  return saved_folder_.empty() ? "there is no checkpoint yet"
                               : "no step was sound after the checkpoint " + saved_folder_;
}

}  // namespace trireme::train
