#include "trireme/train/run.hpp"

#include "trireme/train/trainer.hpp"

#include "async.hpp"
#include "independent_workers.hpp"
#include "served.hpp"

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
  TRIREME_ASSERT(false, "ending {}", static_cast<int>(ending));
}

Ending run(comm::Session& session, RunConfig& config, const config::Fields& fields,
           const DeviceSource& devices) {
  if (waits_for_none(config)) return run_async(session, config, fields, devices);
  if (server_ranks(config) > 0) return run_served(session, config, fields, devices);
  Job job(session, config, fields, devices);
  comm::Grid grid(session, job.plan.shape, job.ledger, job.plan.shard, grid_options(config));
  job.computes.note_free_bytes("with_groups");
  std::unique_ptr<Method> method;
  if (trains_alone(config)) {
    method = std::make_unique<IndependentWorkers>(job, grid);
  } else {
    method = std::make_unique<Method>(job, grid);
  }
  Trainer trainer(job, grid, *method);
  return comm::or_abandon(grid, [&] { return trainer.run(); });
}

}  // namespace trireme::train
