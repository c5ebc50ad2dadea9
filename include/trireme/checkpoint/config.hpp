// When and where a run saves itself.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/config.hpp"

namespace trireme::checkpoint {

struct CheckpointConfig {
  std::int64_t every = 0;  // steps; 0: only at the end
  bool at_end = true;
  std::int64_t keep = 2;        // newest checkpoints kept
  std::string resume = "auto";  // auto | never | path of a step folder

  void declare(config::Fields& fields) {
    fields.add("every", every, "steps between checkpoints; 0: none before the end",
               config::at_least(0));
    fields.add("at_end", at_end, "save after the last step");
    fields.add("keep", keep, "newest checkpoints kept", config::at_least(1));
    fields.add("resume", resume,
               "auto: newest checkpoint of the run folder, if any; never; or the path of one");
  }
};

}  // namespace trireme::checkpoint
