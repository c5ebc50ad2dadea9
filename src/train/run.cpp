#include "trireme/train/run.hpp"

#include "trireme/comm/agree.hpp"

#include "async.hpp"
#include "served.hpp"
#include "trainer.hpp"

namespace trireme::train {

int exit_code(Ending ending) {
  switch (ending) {
    case Ending::done:
      return 0;
    case Ending::requeue:
      return 75;
    case Ending::cut_off:
      break;
  }
  return 1;
}

Ending run(comm::Session& session, RunConfig& config, const config::Fields& fields,
           const DeviceSource& devices) {
  if (waits_for_none(config)) return run_async(session, config, fields, devices);
  if (server_ranks(config) > 0) return run_served(session, config, fields, devices);
  ComputeDevice computes(config.device, session, 0, devices);
  device::MemoryLedger ledger(computes.device());
  const GridPlan plan = plan_grid(config, session, computes.device().is_host());
  computes.note_free_bytes("before_groups");
  comm::Grid grid(session, plan.shape, ledger, plan.shard, grid_options(config));
  computes.note_free_bytes("with_groups");
  computes.settle_precision(config.precision, grid.world());
  comm::agree(grid.world(), [&] {
    check_offload(config.zero.offload, computes.device().is_host());
    validate(config, plan.facts);
  });
  Trainer trainer(session, grid, computes, ledger, config, plan.facts, fields);
  return comm::or_abandon(grid, [&] {
    try {
      return trainer.run();
    } catch (const std::exception& error) {
      trainer.record_failure(error.what());
      throw;
    }
  });
}

}  // namespace trireme::train
