// What a run writes beside its record, for other people's tools.
#pragma once

#include <string>

#include "trireme/core/config.hpp"

namespace trireme::report {

struct ReportConfig {
  bool tensorboard = true;  // tensorboard/ in the run folder
  bool mllog = true;        // mllog.txt in the attempt folder
  std::string benchmark = "llama31_8b";
  std::string organization = "none";
  std::string platform = "auto";
  std::string division = "open";

  void declare(config::Fields& fields) {
    fields.add("tensorboard", tensorboard, "write losses and speed as TensorBoard events too");
    fields.add("mllog", mllog, "write mllog.txt too: events in the format of MLPerf training");
    fields.add("benchmark", benchmark,
               "submission_benchmark in mllog.txt, which has the keys of llama31_8b");
    fields.add("organization", organization, "submission_org in mllog.txt");
    fields.add("platform", platform, "submission_platform in mllog.txt; auto: hosts and processor");
    fields.add("division", division, "submission_division in mllog.txt",
               config::one_of({"open", "closed"}));
  }
};

}  // namespace trireme::report
