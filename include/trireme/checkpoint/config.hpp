// When and where a run saves itself.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::checkpoint {

struct CheckpointConfig {
  std::int64_t every = 0;               // steps; 0: by minutes alone
  double every_minutes = 30;            // 0: by steps alone
  std::string on_failure = "continue";  // continue | stop
  bool async = false;
  bool at_end = true;
  std::int64_t keep = 2;        // newest checkpoints kept
  std::string files = "rank";   // rank | node
  std::string resume = "auto";  // auto | never | path of a step folder

  /// Whether some saves are written in the background; that at the end never is.
  bool in_background() const { return async && (every > 0 || every_minutes > 0); }

  void declare(config::Fields& fields) {
    fields.add("every", every, "steps between checkpoints; 0: by minutes alone",
               config::at_least(0));
    fields.add("every_minutes", every_minutes, "minutes between checkpoints; 0: by steps alone",
               config::non_negative());
    fields.add("on_failure", on_failure,
               "what a save that fails before the end does: continue (with a warning) or stop",
               config::one_of({"continue", "stop"}));
    fields.add(
        "async", async,
        "copy the state to host memory and write it while training continues, but for the save "
        "at the end");
    fields.add("at_end", at_end, "save after the last step");
    fields.add("keep", keep, "newest checkpoints kept", config::at_least(1));
    fields.add("files", files,
               "rank: a file for each rank that writes; node: one for all ranks of a node; above "
               "1000 files, in sub-folders of 1000",
               config::one_of({"rank", "node"}));
    fields.add("resume", resume,
               "auto: newest checkpoint of the run folder, if any; never; or the path of one");
  }
};

}  // namespace trireme::checkpoint
