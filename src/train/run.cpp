#include "trireme/train/run.hpp"

#include "trireme/comm/agree.hpp"

#include "trainer.hpp"

namespace trireme::train {

int exit_code(Ending ending) { return ending == Ending::done ? 0 : 75; }

Ending run(comm::Session& session, RunConfig& config, const config::Fields& fields) {
  device::MemoryLedger ledger;
  const GridPlan plan = plan_grid(config, session);
  comm::Grid grid(session, plan.shape, ledger, plan.shard);
  comm::agree(grid.world(), [&] { validate(config, plan.facts); });
  return Trainer(session, grid, ledger, config, plan.facts, fields).run();
}

}  // namespace trireme::train
