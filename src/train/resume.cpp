#include "trireme/train/resume.hpp"

#include <algorithm>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/hugging_face.hpp"
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

Error damaged(const checkpoint::Reader& reader, const char* what) {
  return Error("{}: its {} damaged; use another checkpoint", reader.folder().string(), what);
}

/// Whether the checkpoint has weights alone: then the optimizer's state begins at zero.
bool imported(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  return extra.is_object() && extra.value(checkpoint::weights_only, false);
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

/// What stochastic rounding of the checkpoint's weights went by: not its step, where the last ones
/// were skipped.
std::int64_t rounding_of(const checkpoint::Reader& reader) {
  const nlohmann::json& extra = reader.state().extra;
  if (!extra.is_object() || !extra.contains("rounded_for")) return reader.state().step;
  const nlohmann::json& rounded_for = extra.at("rounded_for");
  if (!rounded_for.is_number_integer()) throw damaged(reader, "rounded_for is");
  return rounded_for.get<std::int64_t>();
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

void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded) {
  // As that of a new model, whatever was read before.
  if (imported(reader)) return checkpoint::clear_pieces(state, flat);
  checkpoint::load_pieces(reader, prefix, state, flat, sharded);
}

std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& passed_over) {
  const std::string& resume = config.checkpoint.resume;
  return comm::of_rank_zero(world, [&] {
    const auto newest = checkpoint::newest(config.train.output, &passed_over);
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
      passed_over.push_back(fmt::format("{}: {} is there already", named.string(), own));
      return own;
    }
    throw Error("checkpoint.resume = {}: {} is newer; {}", named.string(), own, mend);
  });
}

void load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                 const std::function<void(const checkpoint::Reader& reader)>& load,
                 const std::function<void(const std::string& line)>& report) {
  for (;;) {
    comm::agree(world, [&] {
      const checkpoint::Reader reader(folder);
      compare_models(config.model, reader);
      compare_optimizers(config.optim, reader);
    });
    try {
      return comm::agree(world, [&] { load(checkpoint::Reader(folder)); });
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
  ResumePoint point{.folder = reader.folder().string(),
                    .position = {.step = state.step,
                                 .samples = state.samples,
                                 .states_begin = states_begin_of(reader)},
                    .rounded_for = rounding_of(reader),
                    .own = same_folder(reader.folder().parent_path(), config.train.output)};
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
  if (!extra.is_object() || !extra.contains("workers")) return std::nullopt;
  const nlohmann::json& workers = extra.at("workers");
  const bool whole = workers.is_object() && workers.contains("each") &&
                     workers.at("each").is_array() && workers.contains("own_states") &&
                     workers.at("own_states").is_boolean();
  if (!whole) throw damaged(reader, "workers are");
  const nlohmann::json& each = workers.at("each");
  if (!std::ranges::all_of(each, [](const auto& worker) { return worker.is_object(); })) {
    throw damaged(reader, "workers are");
  }
  return KeptWorkers{{each.begin(), each.end()}, workers.at("own_states").get<bool>()};
}

}  // namespace trireme::train
