// What a run goes on from, and what it leaves to be gone on from.
#include <algorithm>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/checkpoint/pieces.hpp"
#include "trireme/checkpoint/tokenizer.hpp"
#include "trireme/comm/agree.hpp"

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

}  // namespace

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

void Trainer::resume(std::string folder) {
  std::vector<std::string> notes;
  for (;;) {
    comm::agree(grid_.world(), [&] { compare_models(config_.model, folder); });
    try {
      comm::agree(grid_.world(), [&] { notes = load(folder); });
      break;
    } catch (const AgreedError& error) {  // its data are damaged
      const std::string older = comm::of_rank_zero(grid_.world(), [&] {
        const std::int64_t step = checkpoint::Reader(folder).state().step;
        const auto found = checkpoint::newest(config_.train.output, nullptr, step - 1);
        return found ? found->string() : std::string();
      });
      if (config_.checkpoint.resume != "auto" || older.empty()) throw;
      say(fmt::format("passed over: {}", error.what()));
      folder = older;
    }
  }
  replica_.refresh();
  say(fmt::format("resumed from {}: step {}", folder, step_));
  for (const std::string& note : notes) say("note: " + note);
}

void compare_models(const model::ModelConfig& config, const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
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
                value.dump(), folder.string(), theirs.at(key).dump());
  }
}

std::vector<std::string> Trainer::load(const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
  const state::ModelState& state = replica_.state();
  const bool own = servers_ == nullptr;  // or servers load, and refresh() brings the values
  if (!own && speaks()) servers_->worker->work(load_work, folder.string());
  if (own) {
    checkpoint::load_pieces(reader, "parameters", state, state.parameters(),
                            state.parameters_sharded());
  }
  const nlohmann::json& extra = reader.state().extra;
  const bool imported = extra.is_object() && extra.value(checkpoint::weights_only, false);
  for (const auto& kept : replica_.optimizer().states()) {
    if (imported || !own) break;  // imported: it begins at zero, as that of a new model
    checkpoint::load_pieces(reader, kept.name, state, kept.flat, shards_state());
  }
  step_ = reader.state().step;
  samples_ = reader.state().samples;
  if (extra.is_object() && extra.contains("health")) health_.from_json(extra.at("health"));
  if (extra.is_object() && extra.contains("loss_scale")) {
    const nlohmann::json& scale = extra.at("loss_scale");
    const bool whole = scale.is_object() && scale.contains("value") &&
                       scale.contains("steps_since_change") && scale.at("value").is_number() &&
                       scale.at("steps_since_change").is_number_integer();
    if (!whole)
      throw Error("{}: its loss_scale is damaged; use another checkpoint", folder.string());
    loss_scale_.restore(scale.at("value").get<double>(),
                        scale.at("steps_since_change").get<std::int64_t>());
  }
  // A checkpoint of another run folder is not this one's: it will have its own.
  if (same_folder(folder.parent_path(), config_.train.output)) saved_step_ = step_;
  saved_folder_ = folder.string();
  std::vector<std::string> notes;
  if (samples_ != step_ * config_.train.batch) {
    notes.push_back(
        fmt::format("{} samples in {} steps so far, train.batch = {} from the next one on",
                    samples_, step_, config_.train.batch));
  }
  const auto seed = static_cast<std::uint64_t>(config_.train.seed);
  if (!imported && reader.state().seed != seed) {
    notes.push_back(
        fmt::format("train.seed = {}, and {} before: sample order and dropout are other ones from "
                    "the next step on",
                    seed, reader.state().seed));
  }
  compare_tokenizers(reader, notes);
  return notes;
}

/// Tokens without a tokenizer take over the checkpoint's; another one is most likely a mistake.
void Trainer::compare_tokenizers(const checkpoint::Reader& reader,
                                 std::vector<std::string>& notes) {
  const auto theirs = checkpoint::kept_tokenizer(reader);
  const data::Manifest& ours = dataset_.manifest();
  if (!theirs || !speaks()) return;
  if (ours.tokenizer == "none") {
    tokenizer_ = data::stored_tokenizer(*theirs, reader.folder());
  } else if (ours.tokenizer != theirs->tokenizer ||
             ours.tokenizer_details != theirs->tokenizer_details) {
    notes.push_back(fmt::format(
        "the dataset {} has another tokenizer ({}) than the checkpoint {} ({})",
        dataset_.folder().string(), ours.tokenizer, reader.folder().string(), theirs->tokenizer));
  }
}

std::vector<checkpoint::Piece> Trainer::pieces() const {
  std::vector<checkpoint::Piece> pieces;
  const state::ModelState& state = replica_.state();
  const checkpoint::Writers writers{data_group_.rank(), data_group_.size()};
  checkpoint::append_pieces(pieces, "parameters", state, state.parameters(),
                            state.parameters_sharded(), writers);
  for (const auto& kept : replica_.optimizer().states()) {
    checkpoint::append_pieces(pieces, kept.name, state, kept.flat, shards_state(), writers);
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
                          .extra = {{"health", health_.to_json()}}};
  if (loss_scale_.dynamic()) {
    state.extra["loss_scale"] = {{"value", loss_scale_.value()},
                                 {"steps_since_change", loss_scale_.steps_since_change()}};
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
  if (!speaks()) return;
  record([&](report::RunRecord& run) { run.write_event(step_, "save", saved_folder_); });
  say("saved " + saved_folder_);
  try {
    checkpoint::prune(config_.train.output, config_.checkpoint.keep, step);
  } catch (const Error& error) {  // of rank 0 alone, and nothing is lost by it
    say(fmt::format("warning: {}; tried again after the next save", error.what()));
  }
}

}  // namespace trireme::train
