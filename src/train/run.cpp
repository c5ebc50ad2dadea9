#include "trireme/train/run.hpp"

#include "trireme/train/trainer.hpp"

namespace trireme::train {

int exit_code(Ending ending) {
  switch (ending) {
    case Ending::done:
      return 0;
    case Ending::requeue:
      return 75;
    case Ending::cut_off:
      return 1;
  }
  no_case_for(ending);
}

Ending run(comm::Session& session, RunConfig& config, const config::Fields& fields,
           const DeviceSource& devices) {
  TRIREME_ASSERT(config.data_parallel.method == "allreduce", "data_parallel.method = {}",
                 config.data_parallel.method);
  Job job(session, config, fields, devices);
  return run_on_grid<Method>(job);
}

}  // namespace trireme::train
