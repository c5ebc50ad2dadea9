#include "trireme/train/checkpointer.hpp"

#include <algorithm>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/train/select.hpp"

namespace trireme::train {

Checkpointer::Checkpointer(const Job& job, const data::Dataset& dataset, RunReporter& reporter,
                           std::function<double()> now)
    : job_(job),
      dataset_(dataset),
      reporter_(reporter),
      now_(std::move(now)),
      policy_(job.config.checkpoint, now_) {}

void Checkpointer::take_tokenizer() {
  tokenizer_ = data::stored_tokenizer(dataset_.manifest(), dataset_.folder());
}

void Checkpointer::take_tokenizer(const checkpoint::Reader& reader,
                                  std::vector<std::string>& notes) {
  tokenizer_ = choose_tokenizer(reader, dataset_, notes);
}

void Checkpointer::resumed(const ResumePoint& point) {
  // A checkpoint of another run folder is not this one's: it will have its own.
  if (point.own) saved_step_ = point.position.step;
  saved_folder_ = point.folder;
  reporter_.print(fmt::format("resumed from {}: step {}", point.folder, point.position.step));
  for (const std::string& note : point.notes) reporter_.note(note);
}

checkpoint::State Checkpointer::state_at(const Position& position, nlohmann::json extra) const {
  checkpoint::State state{.step = position.step,
                          .samples = position.samples,
                          .seed = static_cast<std::uint64_t>(job_.config.train.seed),
                          .config = job_.resolved,
                          .versions = versions(),
                          .extra = std::move(extra)};
  if (position.states_begin > 0) state.extra["states_begin"] = position.states_begin;
  checkpoint::keep_tokenizer(state, tokenizer_);
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
  policy_.restart();
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
    reporter_.event(step, "save failed", error.what());
    reporter_.warn(fmt::format("{}; training goes on", error.what()));
  }
}

void Checkpointer::note_saved(const std::filesystem::path& folder, std::int64_t saved,
                              std::int64_t step) {
  saved_step_ = saved;
  saved_folder_ = folder.string();
  if (!reporter_.is_root()) return;
  reporter_.event(step, "save", saved_folder_);
  reporter_.print("saved " + saved_folder_);
  try {
    checkpoint::prune(job_.config.train.output, job_.config.checkpoint.keep, saved);
  } catch (const Error& error) {  // of the root alone, and nothing is lost by it
    reporter_.warn(fmt::format("{}; tried again after the next save", error.what()));
  }
}

std::string Checkpointer::last_good() const {
  return saved_folder_.empty() ? "there is no checkpoint yet"
                               : "the last good checkpoint is " + saved_folder_;
}

}  // namespace trireme::train
