// Where a run goes on from: which checkpoint, what it must have in common with the configuration,
// and what is loaded of it whatever the layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/state/model_state.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

/// How far a run has come.
struct Position {
  std::int64_t step = 0;          // updates done
  std::int64_t samples = 0;       // sequences trained on: where the next step begins
  std::int64_t states_begin = 0;  // updates done when the optimizer's state was last zeroed
};

/// Where a run begins: at 0, or where a checkpoint ends.
struct ResumePoint {
  std::string folder;  // the checkpoint; empty: there is none
  Position position;
  std::int64_t rounded_for = 0;    // see Replica::refresh
  bool own = false;                // of the run folder itself
  std::vector<std::string> notes;  // for the user
};
/// Throws Error where the checkpoint is damaged.
ResumePoint resume_point(const RunConfig& config, const checkpoint::Reader& reader);

/// The step folder to go on from by checkpoint.resume, "" for none; `passed_over` (rank 0): broken
/// ones. Collective over `world`.
std::string find_resume(const RunConfig& config, comm::Communicator& world,
                        std::vector<std::string>& passed_over);
/// Has all ranks `load` from `folder`, and where its data are damaged and checkpoint.resume = auto
/// from an older one of the run folder; then `report` gets the reason on every rank. A model or an
/// optimizer other than the configuration's is an error. Collective over `world`; throws
/// AgreedError.
void load_newest(const RunConfig& config, comm::Communicator& world, std::string folder,
                 const std::function<void(const checkpoint::Reader& reader)>& load,
                 const std::function<void(const std::string& line)>& report);

/// One buffer of the optimizer's state, the checkpoint's under `prefix`; zeros where the checkpoint
/// has weights alone. See checkpoint::load_pieces.
void load_optimizer(const checkpoint::Reader& reader, const std::string& prefix,
                    const state::ModelState& state, const Tensor& flat, bool sharded);

/// Takes over the checkpoint's tokenizer where the dataset has none, and notes where the two
/// differ, which probably is a mistake. Throws Error where the checkpoint's is damaged.
data::StoredTokenizer choose_tokenizer(const checkpoint::Reader& reader,
                                       const data::Dataset& dataset,
                                       std::vector<std::string>& notes);

/// What a checkpoint keeps of each of several independent workers.
struct KeptWorkers {
  std::vector<nlohmann::json> each;
  bool own_states = false;  // of the optimizer
};
/// Nothing where there were none. Throws Error where it is damaged.
std::optional<KeptWorkers> kept_workers(const checkpoint::Reader& reader);

}  // namespace trireme::train
